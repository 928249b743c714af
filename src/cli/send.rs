//! `crawfish send`: hands one message in.

use std::path::Path;

use clap::Args;

use super::{
    chat::{self, Shown},
    exit::Exit,
    reach, show,
};
use crate::config::Env;

/// Sends one message. 发送一条消息。
#[derive(Debug, Args)]
pub struct Send {
    /// The message; `-` reads standard input.
    message: String,
    /// The session, e.g. `agent:main:main`, or a name of your own.
    #[arg(long)]
    session: Option<String>,
    /// Wait for the answer and print it. 等待并显示回答。
    #[arg(long)]
    wait: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Send {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let message = match self.message.as_str() {
            "-" => match chat::read_input() {
                Ok(text) => text,
                Err(exit) => return exit,
            },
            text => text.to_owned(),
        };
        reach::block_on(async {
            let client = match reach::gateway(&loaded) {
                Ok(client) => client,
                Err(exit) => return exit,
            };
            let answer = match client.post(&message, self.session.as_deref()).await {
                Ok(answer) => answer,
                Err(error) => return reach::say_client(error),
            };
            let task = answer["taskId"].as_str().unwrap_or_default();
            if self.wait {
                let shown = if self.json { Shown::Json } else { Shown::Answer };
                return chat::follow(&client, task, shown, &mut None).await;
            }
            if self.json {
                show::json(&answer)
            } else {
                show::line(task)
            }
            Exit::Ok
        })
    }
}
