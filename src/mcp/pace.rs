//! How fast and how large a server may talk: what is faster waits, what is larger ends the connection.
//!
//! A server that floods is read slowly, and its pipe or its connection fills: it is the one that waits.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use channel_api::Clock;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, ReadBuf};

/// The most bytes of one message.
pub const MOST: usize = 4 << 20;
/// Lines that are read at once; further ones wait for the next moment.
const LINES: u32 = 200;
/// That moment.
const MOMENT: Duration = Duration::from_secs(1);

/// Counts the lines of a moment.
#[derive(Debug, Default)]
pub struct Pace {
    began: Duration,
    lines: u32,
}

impl Pace {
    /// So many lines came; how long the next read has to wait.
    pub fn count(&mut self, lines: u32, now: Duration) -> Option<Duration> {
        if now.saturating_sub(self.began) >= MOMENT {
            *self = Self { began: now, lines: 0 };
        }
        self.lines = self.lines.saturating_add(lines);
        (self.lines > LINES).then(|| (self.began + MOMENT).saturating_sub(now))
    }
}

/// A reader of lines that keeps the pace, and fails at a line that is too long.
pub struct Paced<R> {
    inner: R,
    clock: Arc<dyn Clock>,
    pace: Pace,
    line: usize,
    wait: Option<BoxFuture<'static, ()>>,
}

impl<R> Paced<R> {
    /// Reads from `inner`.
    pub fn new(inner: R, clock: Arc<dyn Clock>) -> Self {
        Self { inner, clock, pace: Pace::default(), line: 0, wait: None }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Paced<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(wait) = &mut this.wait {
            ready!(wait.as_mut().poll(cx));
            this.wait = None;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        let mut lines = 0;
        for piece in buf.filled()[before..].split_inclusive(|byte| *byte == b'\n') {
            this.line += piece.len();
            if this.line > MOST {
                return Poll::Ready(Err(io::Error::other(format!("a message of more than {} MiB", MOST >> 20))));
            }
            if piece.ends_with(b"\n") {
                this.line = 0;
                lines += 1;
            }
        }
        if let Some(wait) = this.pace.count(lines, this.clock.monotonic()) {
            let clock = Arc::clone(&this.clock);
            this.wait = Some(Box::pin(async move { clock.sleep(wait).await }));
        }
        Poll::Ready(Ok(()))
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
        assert_eq!(pace.count(LINES, at(5_000)), None);
        assert_eq!(pace.count(1, at(5_400)), Some(at(600)));
        assert_eq!(pace.count(1, at(6_000)), None);
    }

    #[tokio::test]
    async fn a_flood_of_lines_is_read_slowly_and_an_endless_line_not_at_all() {
        let clock = Arc::new(ManualClock::at(0));
        let flood = b"{}\n".repeat(1_000);
        let mut reader = Paced::new(&flood[..], Arc::clone(&clock) as Arc<dyn Clock>);
        let mut buffer = vec![0; 3 * 300];
        assert_eq!(reader.read(&mut buffer).await.ok(), Some(900));
        let mut second = vec![0; 3];
        let waiting = futures_util::poll!(std::pin::pin!(reader.read(&mut second)));
        assert!(waiting.is_pending(), "{waiting:?}");
        clock.advance(MOMENT);
        assert_eq!(reader.read(&mut second).await.ok(), Some(3));

        let endless = vec![b'x'; 50 << 20];
        let mut reader = Paced::new(&endless[..], clock as Arc<dyn Clock>);
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
}
