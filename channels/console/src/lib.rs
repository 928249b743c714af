//! The terminal as a chat: each line of the input is the owner's direct message, each answer goes to the output.
//!
//! Whoever can type here started the gateway, so the lines carry the owner's rights. There is nothing to acknowledge
//! and nothing to read again: a line that the gateway cannot take yet waits here until it can.

use std::time::Duration;

use async_trait::async_trait;
use channel_api::{
    Accepted, Address, Batch, Capabilities, Channel, ChannelContext, ChannelError, ChannelId, Conversation,
    ConversationKind, Format, Inbound, InboundKind, IntakeError, Level, Part, QueueMode, Receipt, Reply, SendError,
    SendKey, Sender, TextUnit, Trust, split::split,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::Mutex,
};

/// The longest line that is taken, in bytes; what is beyond becomes the next message.
const LINE_BYTES: usize = 64 * 1024;

/// The longest message that is written at once, in characters.
const TEXT_LIMIT: usize = 60_000;

/// The one who types. Owner by the rules of the gateway: it is their terminal.
const SENDER: &str = "local";

/// A terminal takes a line or is gone.
const RETRY_PAUSES: &[Duration] = &[Duration::from_secs(1)];

/// One terminal.
pub struct Console {
    id: ChannelId,
    capabilities: Capabilities,
    input: Mutex<Lines>,
    output: Mutex<Box<dyn AsyncWrite + Send + Unpin>>,
}

struct Lines {
    input: Box<dyn AsyncBufRead + Send + Unpin>,
    /// What was read of a line that has not ended yet: kept when a read is given up in the middle.
    begun: Vec<u8>,
    /// A message that was read and is not accepted yet: kept over a restart of `run`.
    unsent: Option<Inbound>,
    /// Messages of this process so far.
    count: u64,
}

impl Console {
    /// A terminal of this name that reads `input` and writes `output`.
    pub fn new(
        account: &str,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let input = Box::new(BufReader::new(input));
        Self {
            id: ChannelId::new("console", account),
            capabilities: Capabilities {
                text_limit: TEXT_LIMIT,
                text_unit: TextUnit::Chars,
                format: Format::Plain,
                edits: false,
                typing: false,
                threads: false,
                buttons: false,
                queue: QueueMode::Followup,
                refuse_over_cap: true,
                account_in_key: true,
                silence_limit: None,
                expires_after: Duration::from_secs(60 * 60),
                retry_pauses: RETRY_PAUSES,
                per_lane: None,
                per_channel: None,
            },
            input: Mutex::new(Lines { input, begun: Vec::new(), unsent: None, count: 0 }),
            output: Mutex::new(Box::new(output)),
        }
    }

    /// A line as a message. The time of this start and a number make its id unique over restarts.
    fn inbound(&self, text: String, started_ms: i64, count: u64) -> Inbound {
        let conversation =
            Conversation { kind: ConversationKind::Direct, id: SENDER.to_owned(), thread: None, title: None };
        Inbound {
            channel: self.id.clone(),
            platform_id: format!("{started_ms}-{count}"),
            fingerprint: None,
            kind: InboundKind::Message,
            about: None,
            conversation,
            sender: Sender { id: SENDER.to_owned(), name: None, is_bot: false },
            text,
            attachments: Vec::new(),
            mentions_us: true,
            reply_to: None,
            at: Some(started_ms),
            address: Address { channel: self.id.clone(), lane: SENDER.to_owned(), data: Value::Null },
            trust: Trust::Own,
            more_expected: None,
            queue: None,
            hold: false,
        }
    }
}

impl Lines {
    /// The next line that says something, without its end; `None` at the end of the input. May be given up at any time.
    async fn next(&mut self) -> std::io::Result<Option<String>> {
        loop {
            let ended = self.read_to_end_of_line().await?;
            let mut line = std::mem::take(&mut self.begun);
            // A cut at the longest line may fall into a character: its first bytes begin the next message.
            if !ended && let Some(whole) = cut_character(&line) {
                self.begun = line.split_off(whole);
            }
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            if !line.is_empty() {
                return Ok(Some(line));
            }
            if ended {
                return Ok(None);
            }
        }
    }

    /// Fills `begun` up to a line's end or the longest line; true at the end of the input.
    async fn read_to_end_of_line(&mut self) -> std::io::Result<bool> {
        loop {
            let buffer = self.input.fill_buf().await?;
            if buffer.is_empty() {
                return Ok(true);
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let take = end.map_or(buffer.len(), |end| end + 1).min(LINE_BYTES.saturating_sub(self.begun.len()));
            self.begun.extend_from_slice(&buffer[..take]);
            self.input.consume(take);
            if self.begun.ends_with(b"\n") {
                return Ok(false);
            }
            if self.begun.len() >= LINE_BYTES {
                return Ok(false);
            }
        }
    }
}

/// Where a character begins that these bytes end in the middle of, if they do.
fn cut_character(bytes: &[u8]) -> Option<usize> {
    let error = std::str::from_utf8(bytes).err()?;
    error.error_len().is_none().then(|| error.valid_up_to())
}

#[async_trait]
impl Channel for Console {
    fn id(&self) -> &ChannelId {
        &self.id
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Ends well at the end of the input, too.
    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        let mut lines = self.input.lock().await;
        loop {
            if lines.unsent.is_none() {
                let line = tokio::select! {
                    biased;
                    () = ctx.shutdown.cancelled() => return Ok(()),
                    line = lines.next() => line.map_err(|error| ChannelError::Stop(format!("the terminal cannot be read: {error}")))?,
                };
                let Some(text) = line else { return Ok(()) };
                lines.count += 1;
                lines.unsent = Some(self.inbound(text, ctx.clock.now_ms(), lines.count));
            }
            let Some(message) = lines.unsent.clone() else { continue };
            let pause = match ctx.intake.accept(Batch::from(message)).await {
                Ok(answers) => match answers.first() {
                    Some(Accepted::Full(pause)) => *pause,
                    _ => {
                        lines.unsent = None;
                        continue;
                    }
                },
                Err(IntakeError::Busy(pause)) => pause,
                Err(error @ IntakeError::Unavailable(_)) => {
                    tracing::warn!(channel = %self.id, %error, "a line of the terminal waits for the store");
                    Duration::from_secs(1)
                }
            };
            tokio::select! {
                biased;
                () = ctx.shutdown.cancelled() => return Ok(()),
                () = ctx.clock.sleep(pause) => {}
            }
        }
    }

    fn render(&self, reply: &Reply, _level: Level) -> Vec<Part> {
        let mut text = reply.text.clone();
        for attachment in &reply.attachments {
            let name = attachment.name.as_deref().unwrap_or("file");
            text.push_str(&format!("\n[{name}]"));
        }
        let texts = split(&text, TEXT_LIMIT, TextUnit::Chars);
        texts.into_iter().map(|text| Part { text, body: json!({}) }).collect()
    }

    async fn send(&self, _to: &Address, part: &Part, _key: &SendKey) -> Result<Receipt, SendError> {
        let line = format!("{}\n", escaped(&part.text));
        let mut output = self.output.lock().await;
        let written = async {
            output.write_all(line.as_bytes()).await?;
            output.flush().await
        };
        // A terminal that does not take a line does not come back.
        written.await.map_err(|error| SendError::ChannelDown(format!("the terminal cannot be written: {error}")))?;
        Ok(Receipt::default())
    }
}

/// The text with everything that a terminal obeys instead of showing made visible: C0 and C1 but for line breaks and
/// tabs, and what turns the direction of writing. security.md §3.3 row 46.
fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' => {
                shown.extend(c.escape_unicode());
            }
            c if c.is_control() => shown.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use channel_api::contract::{self, FakeGateway};
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::*;

    /// A console, the end that types and the end that reads.
    fn terminal() -> (Arc<Console>, DuplexStream, DuplexStream) {
        let (typing, input) = duplex(256 * 1024);
        let (output, reading) = duplex(256 * 1024);
        (Arc::new(Console::new("main", input, output)), typing, reading)
    }

    /// Everything that a console makes of an input that ends.
    async fn typed(text: &[u8]) -> Vec<Inbound> {
        let (console, mut typing, _reading) = terminal();
        typing.write_all(text).await.expect("there is room");
        drop(typing);
        let gateway = FakeGateway::new();
        console.run(gateway.context()).await.expect("the end of the input is no failure");
        gateway.intake.events()
    }

    #[test]
    fn render_keeps_the_contract() {
        contract::check_render(terminal().0.as_ref());
    }

    #[tokio::test]
    async fn shutdown_keeps_the_contract() {
        let (console, _typing, _reading) = terminal();
        contract::check_shutdown(console.as_ref(), &FakeGateway::new()).await;
    }

    #[tokio::test]
    async fn each_line_is_a_direct_message_of_the_owner() {
        let events = typed("你好\r\n\n  two words  \nno end".as_bytes()).await;
        let texts: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
        assert_eq!(texts, ["你好", "two words", "no end"]);
        for event in &events {
            assert_eq!((event.sender.id.as_str(), event.conversation.kind), (SENDER, ConversationKind::Direct));
            assert!(event.mentions_us);
        }
        let mut ids: Vec<&str> = events.iter().map(|event| event.platform_id.as_str()).collect();
        ids.dedup();
        assert_eq!(ids.len(), 3);
    }

    #[tokio::test]
    async fn hostile_input_is_bounded_and_loses_nothing() {
        let long = "x".repeat(LINE_BYTES + 10);
        let events = typed(format!("{long}\nok\n").as_bytes()).await;
        let texts: Vec<String> = events.into_iter().map(|event| event.text).collect();
        assert_eq!(texts.concat(), format!("{long}ok"));
        assert_eq!(texts.len(), 3);

        let long = format!("x{}", "数".repeat(LINE_BYTES / 2));
        let texts: Vec<String> = typed(long.as_bytes()).await.into_iter().map(|event| event.text).collect();
        assert_eq!((texts.concat(), texts.len()), (long, 2));
        assert_eq!(typed(b"\xff\xfehi\n").await[0].text, "\u{fffd}\u{fffd}hi");
    }

    #[tokio::test]
    async fn a_line_waits_until_the_gateway_takes_it() {
        let (console, mut typing, _reading) = terminal();
        typing.write_all(b"hi\n").await.expect("there is room");
        drop(typing);
        let gateway = FakeGateway::new();
        gateway.intake.answer_next(Err(IntakeError::Busy(Duration::from_secs(3))));
        gateway.intake.answer_next(Err(IntakeError::Unavailable("disk full".to_owned())));
        gateway.intake.answer_next(Ok(vec![Accepted::Full(Duration::from_secs(3))]));
        let waiting = async {
            for _ in 0..3 {
                gateway.clock.until_sleeping(1).await;
                gateway.clock.advance(Duration::from_secs(3));
            }
        };
        let (run, ()) = tokio::join!(console.run(gateway.context()), waiting);
        run.expect("the end of the input is no failure");
        let offered: Vec<String> = gateway.intake.offered().into_iter().map(|event| event.platform_id).collect();
        assert_eq!(offered.len(), 4);
        assert!(offered.iter().all(|id| *id == offered[0]), "the same line keeps its id");
        assert_eq!(gateway.intake.events().len(), 1);
    }

    #[tokio::test]
    async fn answers_are_written_with_their_control_characters_visible() {
        let (console, _typing, mut reading) = terminal();
        let text = "a\u{1b}]52;c;aGk=\u{7}b\n\tc\r\u{9b}31m\u{202e}d";
        let part = console.render(&Reply::message(text), Level::Rich).remove(0);
        let key = SendKey {
            part: "pt_1".into(),
            seq: 1,
            last: true,
            in_reply_to: None,
            created_at: 0,
            resend: false,
            replaces: None,
        };
        let to = console.inbound(String::new(), 0, 0).address;
        console.send(&to, &part, &key).await.expect("written");
        let expected = "a\\x1b]52;c;aGk=\\x07b\n\tc\\x0d\\x9b31m\\u{202e}d\n";
        let mut shown = vec![0; expected.len()];
        reading.read_exact(&mut shown).await.expect("there is a line");
        assert_eq!(String::from_utf8(shown).expect("UTF-8"), expected);
        drop(reading);
        let closed = console.send(&to, &part, &key).await;
        assert!(matches!(closed, Err(SendError::ChannelDown(_))), "{closed:?}");
    }
}
