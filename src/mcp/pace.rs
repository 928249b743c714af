//! How fast and how large a server may talk: what is faster waits, what is larger ends the connection.
//!
//! A server that floods is read slowly, and its pipe or its connection fills: it is the one that waits. Its news (messages
//! that nobody asked for and nobody answers) are looked at and dropped here, so that no answer waits behind thousands of them;
//! of those that say that the list of tools is another, the last is never lost and all together are one.

use std::{
    borrow::Cow,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use channel_api::Clock;
use futures_util::future::BoxFuture;
use serde::{Deserialize, de::IgnoredAny};
use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::Notify,
};

/// The most bytes of one message.
pub const MOST: usize = 4 << 20;
/// Messages that are read at once; further ones wait for the next moment.
const MESSAGES: u32 = 200;
/// So many lines that are only looked at count as one message.
const GLANCES: u32 = 100;
/// That moment.
const MOMENT: Duration = Duration::from_secs(1);
/// The most bytes of news; what is longer goes on like any message.
const NEWS: usize = 4 << 10;
/// The most bytes that are read at once.
const PIECE: usize = 8 << 10;

/// Counts the messages of a moment.
#[derive(Debug, Default)]
pub struct Pace {
    began: Duration,
    glances: u32,
}

impl Pace {
    /// So many messages came, and so many lines that were only looked at; how long the next read has to wait.
    pub fn count(&mut self, messages: u32, lines: u32, now: Duration) -> Option<Duration> {
        if now.saturating_sub(self.began) >= MOMENT {
            *self = Self { began: now, glances: 0 };
        }
        self.glances = self.glances.saturating_add(messages.saturating_mul(GLANCES)).saturating_add(lines);
        (self.glances > MESSAGES * GLANCES).then(|| (self.began + MOMENT).saturating_sub(now))
    }
}

/// Whether a message is news, which go no further: none is for us but that the list of tools is another, which `changed` is
/// told.
pub fn is_news(message: &[u8], changed: &Notify) -> bool {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
        id: Option<IgnoredAny>,
    }
    if message.len() > NEWS {
        return false;
    }
    let Ok(Head { method, id: None }) = serde_json::from_slice::<Head<'_>>(message) else { return false };
    if method == "notifications/tools/list_changed" {
        changed.notify_one();
    }
    method.starts_with("notifications/")
}

/// A reader of lines that keeps the pace, drops news, and fails at a line that is too long.
pub struct Paced<R> {
    inner: R,
    clock: Arc<dyn Clock>,
    changed: Arc<Notify>,
    pace: Pace,
    /// Bytes of the line that comes.
    length: usize,
    /// Its beginning, while it may still be news.
    line: Vec<u8>,
    /// What was read and goes on.
    out: Vec<u8>,
    /// How much of it went on.
    gone: usize,
    wait: Option<BoxFuture<'static, ()>>,
}

impl<R> Paced<R> {
    /// Reads from `inner`; tells `changed` when the list of tools is another.
    pub fn new(inner: R, clock: Arc<dyn Clock>, changed: Arc<Notify>) -> Self {
        let (pace, line, out) = (Pace::default(), Vec::new(), Vec::new());
        Self { inner, clock, changed, pace, length: 0, line, out, gone: 0, wait: None }
    }

    /// Sorts what came into what goes on and what is dropped.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (mut messages, mut dropped) = (0, 0);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let may_be_news = self.length <= NEWS;
            self.length += piece.len();
            if self.length > MOST {
                return Err(io::Error::other(format!("a message of more than {} MiB", MOST >> 20)));
            }
            if may_be_news {
                self.line.extend_from_slice(piece);
            } else {
                self.out.extend_from_slice(piece);
            }
            let ends = piece.ends_with(b"\n");
            if ends && may_be_news && is_news(&self.line, &self.changed) {
                self.line.clear();
                dropped += 1;
            } else if ends || self.length > NEWS {
                self.out.append(&mut self.line);
                messages += u32::from(ends);
            }
            if ends {
                self.length = 0;
            }
        }
        if let Some(wait) = self.pace.count(messages, dropped, self.clock.monotonic()) {
            let clock = Arc::clone(&self.clock);
            self.wait = Some(Box::pin(async move { clock.sleep(wait).await }));
        }
        Ok(())
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Paced<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.gone < this.out.len() {
                let rest = &this.out[this.gone..];
                let now = rest.len().min(buf.remaining());
                buf.put_slice(&rest[..now]);
                this.gone += now;
                return Poll::Ready(Ok(()));
            }
            this.out.clear();
            this.gone = 0;
            if let Some(wait) = &mut this.wait {
                ready!(wait.as_mut().poll(cx));
                this.wait = None;
            }
            if buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let mut bytes = [0; PIECE];
            let room = buf.remaining().min(PIECE);
            let mut piece = ReadBuf::new(&mut bytes[..room]);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut piece))?;
            if piece.filled().is_empty() {
                // The end; a last line without one goes on as it is.
                if this.line.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                this.out.append(&mut this.line);
                continue;
            }
            this.take(piece.filled())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn a_flood_waits_for_the_next_moment() {
        let mut pace = Pace::default();
        let at = Duration::from_millis;
        assert_eq!(pace.count(MESSAGES - 1, GLANCES, at(5_000)), None);
        assert_eq!(pace.count(0, 1, at(5_400)), Some(at(600)));
        assert_eq!(pace.count(1, 0, at(6_000)), None);
    }

    #[tokio::test]
    async fn a_flood_of_lines_is_read_slowly_and_an_endless_line_not_at_all() {
        let clock = Arc::new(ManualClock::at(0));
        let flood = b"{}\n".repeat(1_000);
        let mut reader = Paced::new(&flood[..], Arc::clone(&clock) as Arc<dyn Clock>, Arc::default());
        let mut buffer = vec![0; 3 * 300];
        assert_eq!(reader.read(&mut buffer).await.ok(), Some(900));
        let mut second = vec![0; 3];
        let waiting = futures_util::poll!(std::pin::pin!(reader.read(&mut second)));
        assert!(waiting.is_pending(), "{waiting:?}");
        clock.advance(MOMENT);
        assert_eq!(reader.read(&mut second).await.ok(), Some(3));

        let endless = vec![b'x'; 50 << 20];
        let mut reader = Paced::new(&endless[..], clock as Arc<dyn Clock>, Arc::default());
        let mut read = 0;
        let mut buffer = vec![0; 64 * 1024];
        let error = loop {
            match reader.read(&mut buffer).await {
                Ok(bytes) => read += bytes,
                Err(error) => break error,
            }
        };
        assert!(read <= MOST && error.to_string().contains("more than 4 MiB"), "{read} {error}");
    }

    #[tokio::test]
    async fn an_answer_behind_a_flood_of_news_comes_at_once_and_the_news_are_one() {
        let clock = Arc::new(ManualClock::at(0));
        let changed = Arc::new(Notify::new());
        let news = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n";
        let other = "{\"method\":\"notifications/message\",\"params\":{\"data\":\"x\"}}\r\n";
        // A request has an id, a long message is looked at by nobody, and a line that is no JSON is the reader's business.
        let long = format!("{{\"method\":\"notifications/message\",\"params\":\"{}\"}}\n", "y".repeat(2 * NEWS));
        let kept =
            format!("{{\"id\":1,\"method\":\"notifications/message\"}}\n{long}oops\n{{\"id\":7,\"result\":{{}}}}");
        let flood = news.repeat(15_000) + &other.repeat(4_000) + &kept;
        for size in [7, 100, PIECE, 1 << 20] {
            let mut reader = Paced::new(flood.as_bytes(), Arc::clone(&clock) as Arc<dyn Clock>, Arc::clone(&changed));
            let mut read = Vec::new();
            let mut buffer = vec![0; size];
            loop {
                // No time goes by.
                let bytes = tokio::select! {
                    biased;
                    bytes = reader.read(&mut buffer) => bytes.expect("reads"),
                    () = std::future::ready(()) => panic!("it waits after {} bytes", read.len()),
                };
                if bytes == 0 {
                    break;
                }
                read.extend_from_slice(&buffer[..bytes]);
            }
            assert_eq!(String::from_utf8(read).expect("text"), kept, "{size}");
            assert!(futures_util::poll!(std::pin::pin!(changed.notified())).is_ready());
            assert!(futures_util::poll!(std::pin::pin!(changed.notified())).is_pending(), "merged");
        }
        // One that never ends is read slowly all the same.
        let endless = news.repeat(100_000);
        let mut reader = Paced::new(endless.as_bytes(), clock as Arc<dyn Clock>, changed);
        assert!(futures_util::poll!(std::pin::pin!(reader.read(&mut [0; 10]))).is_pending());
    }
}
