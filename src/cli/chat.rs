//! `crawfish chat`: a conversation in the terminal, with tool steps and text as they come; over a pipe, the answer alone.

use std::{
    collections::HashSet,
    io::{IsTerminal as _, Read as _, Write as _},
    path::Path,
};

use clap::Args;
use serde_json::Value;
use tokio::io::AsyncBufReadExt as _;

use super::{client::Client, exit::Exit, reach, show};
use crate::{
    approvals::{Approval, Decision, How},
    config::Env,
    inspect::Query,
    lang::{self, Lang},
    terminal,
};

/// The most bytes of one message.
const MAX_INPUT: u64 = 1 << 20;

/// What a person types; `None` where nobody can.
pub type Typed = Option<tokio::io::Lines<tokio::io::BufReader<tokio::io::Stdin>>>;

/// Talks with the agent. 与助手对话。
#[derive(Debug, Args)]
pub struct Chat {
    /// The session: a name of your own, or a key like `agent:main:main`. 会话。
    #[arg(long)]
    session: Option<String>,
    /// Events as JSON, one a line. 以 JSON 输出事件。
    #[arg(long)]
    json: bool,
}

/// What of a message's events is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// All of them, as they come, for a person.
    Live,
    /// The answer alone.
    Answer,
    /// The events as JSON.
    Json,
}

/// Reads one message from standard input.
///
/// # Errors
/// The exit code; why was said.
pub fn read_input() -> Result<String, Exit> {
    let mut bytes = Vec::new();
    match std::io::stdin().lock().take(MAX_INPUT + 1).read_to_end(&mut bytes) {
        Ok(_) if bytes.len() as u64 <= MAX_INPUT => {
            let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            if text.trim().is_empty() {
                eprintln!("{}", lang::cli_empty_message(Lang::current()));
                return Err(Exit::Usage);
            }
            Ok(text)
        }
        Ok(_) => {
            eprintln!("{}", lang::cli_long_message(Lang::current(), MAX_INPUT >> 20));
            Err(Exit::Usage)
        }
        Err(error) => {
            eprintln!("{error}");
            Err(Exit::Io)
        }
    }
}

impl Chat {
    /// Runs until the input ends, or until a second Ctrl-C.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let client = match reach::gateway(&loaded) {
            Ok(client) => client,
            Err(exit) => return exit,
        };
        if !std::io::stdin().is_terminal() {
            let message = match read_input() {
                Ok(message) => message,
                Err(exit) => return exit,
            };
            let shown = if self.json { Shown::Json } else { Shown::Answer };
            return reach::block_on(async { self.say(&client, &message, shown, &mut None).await });
        }
        reach::block_on(self.converse(&client))
    }

    async fn converse(&self, client: &Client) -> Exit {
        eprintln!("{}", lang::chat_hello(Lang::current()));
        let mut typed: Typed = Some(tokio::io::BufReader::new(tokio::io::stdin()).lines());
        let mut asked = HashSet::new();
        loop {
            if !self.json {
                ask_for_what_waits(client, &mut typed, &mut asked).await;
            }
            let Some(lines) = typed.as_mut() else { return Exit::Ok };
            eprint!("> ");
            let line = tokio::select! {
                line = lines.next_line() => line,
                _ = tokio::signal::ctrl_c() => {
                    eprintln!();
                    return Exit::Interrupted;
                }
            };
            match line {
                Ok(Some(line)) if line.trim().is_empty() => {}
                Ok(Some(line)) if matches!(line.trim(), "/quit" | "/exit" | "/退出") => return Exit::Ok,
                Ok(Some(line)) => {
                    let shown = if self.json { Shown::Json } else { Shown::Live };
                    let end = self.say(client, &line, shown, &mut typed).await;
                    if end == Exit::Interrupted {
                        return end;
                    }
                }
                Ok(None) => return Exit::Ok,
                Err(error) => {
                    eprintln!("{error}");
                    return Exit::Io;
                }
            }
        }
    }

    /// Sends one message and shows its answer; Ctrl-C stops the turn, a second one leaves.
    async fn say(&self, client: &Client, message: &str, shown: Shown, typed: &mut Typed) -> Exit {
        let answer = match client.post(message, self.session.as_deref()).await {
            Ok(answer) => answer,
            Err(error) => return reach::say_client(error),
        };
        let task = answer["taskId"].as_str().unwrap_or_default().to_owned();
        let mut following = std::pin::pin!(follow(client, &task, shown, typed));
        tokio::select! {
            end = &mut following => return end,
            _ = tokio::signal::ctrl_c() => {}
        }
        eprintln!("\n{}", lang::chat_stopping(Lang::current()));
        let stop = async {
            if let Err(error) = client.post("/stop", self.session.as_deref()).await {
                reach::say_client(error);
            }
            following.await
        };
        tokio::select! {
            end = stop => end,
            _ = tokio::signal::ctrl_c() => Exit::Interrupted,
        }
    }
}

/// Asks, one after another, for the word about what waits and was not asked for here before: a sub-agent's request, one of a
/// turn that this terminal does not follow.
async fn ask_for_what_waits(client: &Client, typed: &mut Typed, asked: &mut HashSet<String>) {
    let waiting = client.ask(&Query::Approvals(false).request()).await.unwrap_or_default();
    let waiting: Vec<Approval> = serde_json::from_value(waiting["approvals"].clone()).unwrap_or_default();
    for row in waiting.into_iter().rev() {
        if !asked.insert(row.id.clone()) {
            continue;
        }
        eprintln!("{}", terminal::escape(&row.request(Lang::current())));
        let mut open = Some(Open { id: row.id, may_always: row.may_always });
        open.as_ref().inspect(|open| open.prompt());
        while open.is_some() && typed.is_some() {
            let line = tokio::select! {
                line = next_line(typed) => line,
                _ = tokio::signal::ctrl_c() => {
                    eprintln!();
                    return;
                }
            };
            hear(client, &mut open, line.as_deref()).await;
        }
    }
}

/// A request that can be answered here.
struct Open {
    id: String,
    may_always: bool,
}

impl Open {
    fn prompt(&self) {
        let lang = Lang::current();
        eprint!("{}", if self.may_always { lang::chat_approve_always(lang) } else { lang::chat_approve(lang) });
    }

    /// The word that a line is.
    fn word(&self, line: &str) -> Option<Decision> {
        match line.trim().to_lowercase().as_str() {
            "a" | "always" | "总是" if self.may_always => Some(Decision::Always),
            line => Decision::answered(line),
        }
    }
}

/// The next line that is typed, `None` at the end of the input; nothing where nobody types. Cancel-safe.
async fn next_line(typed: &mut Typed) -> Option<String> {
    let Some(lines) = typed.as_mut() else { return std::future::pending().await };
    let line = lines.next_line().await.ok().flatten();
    if line.is_none() {
        *typed = None;
    }
    line
}

/// Decides by what was typed; what is no answer is asked for again, and the end of the input leaves it waiting.
async fn hear(client: &Client, open: &mut Option<Open>, line: Option<&str>) {
    let (Some(line), Some(request)) = (line, open.as_ref()) else {
        *open = None;
        return;
    };
    let Some(decision) = request.word(line) else { return request.prompt() };
    let decide = Query::Decide { id: request.id.clone(), decision, how: How::Chat };
    match client.ask(&decide.request()).await {
        Ok(answer) => {
            if let Ok(row) = serde_json::from_value::<Approval>(answer["approval"].clone()) {
                eprintln!("{}", row.outcome(Lang::current()));
            }
        }
        Err(error) => {
            reach::say_client(error);
        }
    }
    *open = None;
}

/// Shows the events of one message until it is settled; where somebody types, requests for approval are answered on the
/// spot. A stream that breaks is taken up again where it broke.
pub async fn follow(client: &Client, task: &str, shown: Shown, typed: &mut Typed) -> Exit {
    let mut view = View { shown, written: String::new(), open: None };
    let mut after: Option<String> = None;
    for _ in 0..5 {
        let mut events = match client.events(task, after.as_deref()).await {
            Ok(events) => events,
            Err(error) => return reach::say_client(error),
        };
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                line = next_line(typed), if view.open.is_some() => {
                    hear(client, &mut view.open, line.as_deref()).await;
                    continue;
                }
            };
            let Some(event) = event else { break };
            if let Some(end) = view.event(&event) {
                return end;
            }
            if typed.is_some()
                && let Some(open) = view.open.as_ref().filter(|_| event["type"] == "approval_needed")
            {
                open.prompt();
            }
        }
        after = events.last_id().map(str::to_owned);
    }
    eprintln!("{}", lang::chat_broken(Lang::current(), task));
    Exit::Unavailable
}

/// What is on the screen of one answer.
struct View {
    shown: Shown,
    /// The answer's text so far.
    written: String,
    /// What was asked for last, while its turn waits.
    open: Option<Open>,
}

impl View {
    /// Shows an event; the exit code when it was the last.
    fn event(&mut self, event: &Value) -> Option<Exit> {
        if self.shown == Shown::Json {
            show::json_line(event);
        }
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        // What goes on was answered elsewhere.
        if matches!(text("type"), "text_delta" | "tool_start" | "tool_end" | "task_complete" | "task_failed")
            && self.open.take().is_some()
        {
            eprintln!();
        }
        match text("type") {
            "text_delta" if self.shown == Shown::Live => {
                if event["replace"].as_bool() == Some(true) {
                    self.replace(text("text"));
                } else {
                    self.write(text("text"));
                }
            }
            "approval_needed" if self.shown != Shown::Json => {
                self.void();
                eprintln!("{}", terminal::escape(text("text")));
                let approval = &event["approval"];
                let may_always = approval["may_always"].as_bool() == Some(true);
                self.open = approval["id"].as_str().map(|id| Open { id: id.to_owned(), may_always });
            }
            "text_reset" if self.shown == Shown::Live => self.void(),
            "plan" if self.shown == Shown::Live => {
                self.void();
                eprint!("{}", checklist(&event["items"]));
            }
            // The plan itself says it.
            "tool_start" | "tool_end" if text("tool") == "todo" && event["ok"].as_bool() != Some(false) => {}
            "tool_start" if self.shown == Shown::Live => {
                self.void();
                let args = terminal::escape_line(&flat(&event["args"])).into_owned();
                eprintln!("  · {} {}", terminal::escape_line(text("tool")), terminal::cut(&args, 100));
            }
            "tool_end" if self.shown == Shown::Live => {
                let mark = if event["ok"].as_bool() == Some(false) { "✗" } else { "✓" };
                eprintln!("  {mark} {} ({} ms)", terminal::escape_line(text("tool")), event["ms"]);
            }
            "task_complete" => {
                match self.shown {
                    Shown::Live => {
                        self.replace(text("result"));
                        if self.written.is_empty() && !text("silent").is_empty() {
                            eprint!("{}", lang::chat_silent(Lang::current(), terminal::escape_line(text("silent"))));
                        }
                        println!();
                    }
                    Shown::Answer => show::line(text("result")),
                    Shown::Json => {}
                }
                return Some(Exit::Ok);
            }
            "task_failed" => {
                if self.shown != Shown::Json {
                    self.void();
                    eprintln!("{}", terminal::escape(&lang::turn_failed(Lang::current(), text("error"))));
                }
                return Some(Exit::Failure);
            }
            _ => {}
        }
        None
    }

    fn write(&mut self, text: &str) {
        self.written.push_str(text);
        let mut out = std::io::stdout();
        let _ = write!(out, "{}", terminal::escape(text));
        let _ = out.flush();
    }

    /// Goes on to `text`: what is shown already stays if it is its beginning.
    fn replace(&mut self, text: &str) {
        let shown = self.written.trim_end();
        match text.strip_prefix(shown) {
            Some(_) if text.len() <= self.written.len() => {}
            Some(rest) => {
                // Blanks at the end were shown already.
                let rest = rest.strip_prefix(&self.written[shown.len()..]).unwrap_or(rest).to_owned();
                self.write(&rest);
            }
            None => {
                let text = text.to_owned();
                self.void();
                self.write(&text);
            }
        }
    }

    /// What was shown is no longer the answer.
    fn void(&mut self) {
        if !self.written.is_empty() {
            println!();
        }
        self.written.clear();
    }
}

/// A plan as lines of the terminal.
fn checklist(items: &Value) -> String {
    let line = |item: &Value| {
        let sign = match item["state"].as_str() {
            Some("done") => "☑",
            Some("doing") => "▶",
            Some("dropped") => "☒",
            _ => "☐",
        };
        format!("  {sign} {}\n", terminal::escape_line(item["text"].as_str().unwrap_or_default()))
    };
    items.as_array().map(|items| items.iter().map(line).collect()).unwrap_or_default()
}

fn flat(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_screen_follows_the_events_to_the_end() {
        let mut view = View { shown: Shown::Live, written: String::new(), open: None };
        for text in ["你", "好 "] {
            assert_eq!(view.event(&json!({ "type": "text_delta", "text": text })), None);
        }
        assert_eq!(view.written, "你好 ");
        view.event(&json!({ "type": "text_delta", "text": "你好 吗", "replace": true }));
        assert_eq!(view.written, "你好 吗");
        view.event(&json!({ "type": "text_reset" }));
        assert_eq!(view.written, "");
        view.event(&json!({ "type": "text_delta", "text": "one" }));
        assert_eq!(view.event(&json!({ "type": "task_complete", "result": "two" })), Some(Exit::Ok));
        assert_eq!(view.written, "two");
        assert_eq!(view.event(&json!({ "type": "task_failed", "error": "x\u{1b}" })), Some(Exit::Failure));
        assert_eq!(view.event(&json!(null)), None);
        let needed =
            json!({ "type": "approval_needed", "text": "May I?", "approval": { "id": "ab23cd", "may_always": false } });
        assert_eq!(view.event(&needed), None);
        let open = view.open.as_ref().expect("it can be answered");
        let words = ["y", "同意", "N", "拒绝", "a", "yes please", ""].map(|line| open.word(line));
        assert_eq!(
            words,
            [Some(Decision::Once), Some(Decision::Once), Some(Decision::Deny), Some(Decision::Deny), None, None, None]
        );
        let always = Open { id: String::new(), may_always: true };
        assert_eq!(always.word(" A "), Some(Decision::Always));
        view.event(&json!({ "type": "tool_start", "tool": "exec" }));
        assert!(view.open.is_none(), "it was answered elsewhere");
        let items =
            json!([{ "text": "look\u{1b}[2J", "state": "done" }, { "text": "写", "state": "doing" }, { "text": "x" }]);
        let lines = checklist(&items);
        assert!(
            !lines.contains('\u{1b}') && lines.ends_with("  ▶ 写\n  ☐ x\n") && lines.starts_with("  ☑ look"),
            "{lines}"
        );
    }
}
