//! What the tests of the tools stand on: a workspace, a skills folder and a place outside, all in one temporary folder.

use std::{fs, path::PathBuf, sync::Arc};

use channel_api::{Address, ChannelId, Conversation, ConversationKind, Inbound, InboundKind, Sender, Trust, TurnId};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Call, Tool, ToolContext, ToolError};
use crate::{
    clock::SystemClock,
    lang::Lang,
    policy::{Asker, Role},
    session::SessionKey,
    store::{BootId, Lease},
};

/// A temporary house for files.
pub struct Fixture {
    /// Holds `workspace`, `skills` and `outside` (with `secret.txt`).
    pub top: tempfile::TempDir,
    /// For calls.
    pub ctx: ToolContext,
}

impl Fixture {
    /// An empty workspace, a skills folder with one skill, and a secret outside.
    pub fn new() -> Self {
        let top = tempfile::tempdir().expect("a temporary folder");
        for folder in ["workspace", "skills/weather", "outside"] {
            fs::create_dir_all(top.path().join(folder)).expect("a folder");
        }
        fs::write(top.path().join("skills/weather/SKILL.md"), "# Weather\n").expect("a file");
        fs::write(top.path().join("outside/secret.txt"), "TOP SECRET\n").expect("a file");
        let channel = ChannelId::new("web", "main");
        let conversation =
            Conversation { kind: ConversationKind::Direct, id: "main".to_owned(), thread: None, title: None };
        let inbound = Inbound {
            channel: channel.clone(),
            platform_id: "m1".to_owned(),
            fingerprint: None,
            kind: InboundKind::Message,
            about: None,
            conversation,
            sender: Sender { id: "owner".to_owned(), name: None, is_bot: false },
            text: "hello".to_owned(),
            attachments: Vec::new(),
            mentions_us: true,
            reply_to: None,
            at: None,
            address: Address { channel, lane: "main".to_owned(), data: Value::Null },
            trust: Trust::Own,
            more_expected: None,
            queue: None,
            hold: false,
        };
        let call = Call {
            turn: TurnId::from("tn_1"),
            call_id: "call_1".to_owned(),
            session: SessionKey::web("main", None),
            lease: Lease {
                session: SessionKey::web("main", None),
                epoch: 1,
                boot: BootId::from("bt_1".to_owned()),
                turn: TurnId::from("tn_1"),
            },
            agent: "main".to_owned(),
            asker: Asker { role: Role::Owner, direct: true },
            inbound: Arc::new(inbound),
            errand: None,
            lang: Lang::En,
            outside: false,
        };
        let ctx = ToolContext {
            call: Arc::new(call),
            workspace: top.path().join("workspace"),
            readable: vec![top.path().join("skills")],
            media: top.path().join("media"),
            variables: Arc::default(),
            output_chars: 16_000,
            cancel: CancellationToken::new(),
            clock: Arc::new(SystemClock::new()),
        };
        Self { top, ctx }
    }

    /// A path in the workspace.
    pub fn at(&self, path: &str) -> PathBuf {
        self.ctx.workspace.join(path)
    }

    /// Puts a file into the workspace.
    pub fn put(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, content).expect("a file");
        self
    }

    /// Runs a call; an error for the model is `Err`. Every text that comes back is checked: never empty, within its
    /// limit, and free of the host's paths and of the secret.
    pub async fn run(&self, tool: &dyn Tool, args: Value) -> Result<String, String> {
        let result = match tool.call(args, &self.ctx).await {
            Ok(output) => Ok(output.text),
            Err(ToolError::TellModel(text)) => Err(text),
            Err(ToolError::Abort(why)) => panic!("aborted: {why}"),
        };
        let text = match &result {
            Ok(text) | Err(text) => text,
        };
        assert!(!text.is_empty());
        assert!(text.chars().count() <= self.ctx.output_chars.max(2_000), "{} characters", text.len());
        assert!(!text.contains("TOP SECRET"), "{text}");
        result
    }
}
