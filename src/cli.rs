//! The command line: one verb, one file, and the exit code of each end.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use self::exit::Exit;
use crate::{config::Env, lang::Lang};

mod access;
mod approvals;
mod audit;
mod channels;
mod chat;
mod client;
mod config;
mod dlq;
mod doctor;
pub mod exit;
mod halt;
mod heartbeat;
mod init;
mod logs;
mod mcp;
mod memory;
mod pairing;
mod probe;
mod prompt;
mod reach;
mod schedule;
mod send;
mod serve;
mod sessions;
mod show;
mod skills;
mod trace;
mod usage;

/// A self-hosted gateway between chat platforms and an agent. 聊天平台与智能体之间的自托管网关。
#[derive(Debug, Parser)]
#[command(name = "crawfish", version)]
struct Arguments {
    /// The configuration file (default: config.toml in this folder, if there is one). 配置文件。
    #[arg(long, short, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Accept a configuration with secrets that others can read. 允许他人可读的含密钥配置。
    #[arg(long, global = true)]
    insecure_perms: bool,
    /// The language of this program's own lines. 界面语言。
    #[arg(long, global = true, value_name = "en|zh", value_parser = ["en", "zh"])]
    lang: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs the gateway. 运行网关。
    Serve(serve::Serve),
    /// Talks with the agent in the terminal. 在终端中对话。
    Chat(chat::Chat),
    /// Sends one message. 发送一条消息。
    Send(send::Send),
    /// Asks what is needed and writes a configuration. 问几个问题，写好配置文件。
    Init(init::Init),
    /// Looks for what is wrong or still closed. 检查问题和未开启的功能。
    Doctor(doctor::Doctor),
    /// Checks or shows the configuration. 检查或显示配置。
    Config(config::Config),
    /// Lists the channels, and looks at their accounts. 列出渠道，检查账号。
    Channels(channels::Channels),
    /// Lets people in who asked. 批准或拒绝配对请求。
    Pairing(pairing::Pairing),
    /// What waits for your word. 待批准的操作。
    Approvals(approvals::Approvals),
    /// Shuts people out. 拉黑或恢复。
    Access(access::Access),
    /// What was done and decided. 查看和校验审计日志。
    Audit(audit::Audit),
    /// Begins nothing new until `resume`. 暂停：不再开始任何新的处理。
    Halt(halt::Halt),
    /// Goes on after `halt`. 恢复。
    Resume(halt::Resume),
    /// Lists, shows, searches, resets, exports conversations. 查看、搜索、重置、导出会话。
    Sessions(sessions::Sessions),
    /// Shows what happened in one turn. 显示一次处理的全过程。
    Trace(trace::Trace),
    /// Shows what models took and cost. 查看模型用量和费用。
    Usage(usage::Usage),
    /// Messages that could not be processed. 无法处理的消息。
    Dlq(dlq::Dlq),
    /// Reminders and standing work. 提醒和定时任务。
    Schedule(schedule::Schedule),
    /// The regular look around. 心跳。
    Heartbeat(heartbeat::Heartbeat),
    /// Reads the gateway's log. 查看日志。
    Logs(logs::Logs),
    /// Searches the notes; what waits to be remembered. 搜索笔记，处理待记忆内容。
    Memory(memory::Memory),
    /// Shows the system prompt. 显示系统提示词。
    Prompt(prompt::Prompt),
    /// Looks after the skills. 管理技能。
    Skills(skills::Skills),
    /// Looks after MCP servers and their tools. 管理 MCP 服务器及其工具。
    Mcp(mcp::Mcp),
}

/// Runs what the command line asks for.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version go to standard output and are no mistakes.
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Ok };
            let _ = error.print();
            return exit.into();
        }
    };
    let mut env = Env::of_process();
    // Before any thread starts: from here on a key of the environment is in `env` alone.
    crawfish_sandbox::forget_variables(crate::os::variable);
    env.insecure_perms = arguments.insecure_perms;
    env.lang = match arguments.lang.as_deref() {
        Some("zh") => Some(Lang::Zh),
        Some("en") => Some(Lang::En),
        _ => env.lang,
    };
    let config = arguments.config.as_deref();
    match arguments.verb {
        Verb::Serve(serve) => serve.run(config, &env),
        Verb::Chat(chat) => chat.run(config, &env),
        Verb::Send(send) => send.run(config, &env),
        Verb::Init(init) => init.run(config, &env),
        Verb::Doctor(doctor) => doctor.run(config, &env),
        Verb::Config(verb) => verb.run(config, &env),
        Verb::Channels(channels) => channels.run(config, &env),
        Verb::Pairing(pairing) => pairing.run(config, &env),
        Verb::Approvals(approvals) => approvals.run(config, &env),
        Verb::Access(access) => access.run(config, &env),
        Verb::Audit(audit) => audit.run(config, &env),
        Verb::Halt(halt) => halt.run(config, &env),
        Verb::Resume(resume) => resume.run(config, &env),
        Verb::Sessions(sessions) => sessions.run(config, &env),
        Verb::Trace(trace) => trace.run(config, &env),
        Verb::Usage(usage) => usage.run(config, &env),
        Verb::Dlq(dlq) => dlq.run(config, &env),
        Verb::Schedule(schedule) => schedule.run(config, &env),
        Verb::Heartbeat(heartbeat) => heartbeat.run(config, &env),
        Verb::Logs(logs) => logs.run(config, &env),
        Verb::Memory(memory) => memory.run(config, &env),
        Verb::Prompt(prompt) => prompt.run(config, &env),
        Verb::Skills(skills) => skills.run(config, &env),
        Verb::Mcp(mcp) => mcp.run(config, &env),
    }
    .into()
}
