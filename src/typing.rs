//! "Is typing…": shown while a turn runs, again and again before the platform lets it fade. Best effort: whatever a
//! platform does with it, the turn neither waits nor fails.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use channel_api::{Address, Channel, Clock};
use futures_util::FutureExt;
use tokio::sync::watch;

/// How often it is shown: Telegram's fades after 5 s.
const EVERY: Duration = Duration::from_secs(4);
/// How long one call may take.
const CALL: Duration = Duration::from_secs(4);
/// How long it is shown without a finished step.
const MOST: Duration = Duration::from_secs(120);

/// Shows it until it is dropped; rests when no step has finished for two minutes, until one does. `steps` changes with
/// every finished step.
pub async fn show(channel: Arc<dyn Channel>, to: Address, clock: Arc<dyn Clock>, mut steps: watch::Receiver<bool>) {
    let mut since = clock.monotonic();
    loop {
        if clock.monotonic().saturating_sub(since) >= MOST {
            if steps.changed().await.is_err() {
                return;
            }
            since = clock.monotonic();
        }
        let next = clock.monotonic() + EVERY;
        let call = AssertUnwindSafe(channel.typing(&to)).catch_unwind();
        tokio::select! {
            shown = call => {
                if shown.is_err() {
                    tracing::error!(channel = %to.channel, "the adapter panicked while it showed that an answer is written");
                    return;
                }
            }
            () = clock.sleep(CALL) => {}
        }
        clock.sleep(next.saturating_sub(clock.monotonic())).await;
        if steps.has_changed().unwrap_or(false) {
            steps.mark_unchanged();
            since = clock.monotonic();
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use channel_api::{
        Capabilities, ChannelContext, ChannelError, ChannelId, Level, Part, Receipt, Reply, SendError, SendKey,
        contract::FakeClock,
    };
    use tokio::task::JoinSet;

    use super::*;

    /// How the platform takes the call.
    #[derive(Clone, Copy)]
    enum Takes {
        Well,
        Never,
        Panics,
    }

    struct Typed {
        id: ChannelId,
        takes: Takes,
        calls: watch::Sender<usize>,
    }

    #[async_trait]
    impl Channel for Typed {
        fn id(&self) -> &ChannelId {
            &self.id
        }

        fn capabilities(&self) -> &Capabilities {
            unreachable!("not asked here")
        }

        async fn run(&self, _: ChannelContext) -> Result<(), ChannelError> {
            Ok(())
        }

        fn render(&self, _: &Reply, _: Level) -> Vec<Part> {
            Vec::new()
        }

        async fn send(&self, _: &Address, _: &Part, _: &SendKey) -> Result<Receipt, SendError> {
            Ok(Receipt::default())
        }

        async fn typing(&self, _: &Address) {
            self.calls.send_modify(|calls| *calls += 1);
            match self.takes {
                Takes::Well => {}
                Takes::Never => std::future::pending().await,
                Takes::Panics => std::panic::resume_unwind(Box::new("typing")),
            }
        }
    }

    /// The calls so far, the clock, the steps, and the task that shows it.
    fn started(takes: Takes) -> (watch::Receiver<usize>, Arc<FakeClock>, watch::Sender<bool>, JoinSet<()>) {
        let (calls, seen) = watch::channel(0);
        let id = ChannelId::new("test", "a");
        let to = Address { channel: id.clone(), lane: "c".to_owned(), data: serde_json::Value::Null };
        let clock = Arc::new(FakeClock::at(0));
        let (finished, steps) = watch::channel(false);
        let mut task = JoinSet::new();
        task.spawn(show(Arc::new(Typed { id, takes, calls }), to, clock.clone(), steps));
        (seen, clock, finished, task)
    }

    #[tokio::test]
    async fn it_is_shown_at_once_then_every_four_seconds_and_rests_after_two_minutes() {
        let (mut calls, clock, steps, _task) = started(Takes::Well);
        for n in 1..=30 {
            calls.wait_for(|calls| *calls == n).await.expect("it lives");
            clock.until_sleeping(1).await;
            clock.advance(EVERY);
        }
        // Two minutes without a step: it rests until one finishes.
        clock.advance(MOST);
        tokio::task::yield_now().await;
        assert_eq!(*calls.borrow(), 30);
        steps.send_replace(true);
        calls.wait_for(|calls| *calls == 31).await.expect("it lives");
    }

    #[tokio::test]
    async fn a_finished_step_gives_it_two_minutes_more() {
        let (mut calls, clock, steps, _task) = started(Takes::Well);
        for n in 1..=100 {
            calls.wait_for(|calls| *calls == n).await.expect("it lives");
            clock.until_sleeping(1).await;
            steps.send_replace(true);
            clock.advance(EVERY);
        }
    }

    #[tokio::test]
    async fn a_platform_that_hangs_is_asked_again_and_one_that_panics_is_left_alone() {
        let (mut calls, clock, _steps, _task) = started(Takes::Never);
        for n in 1..=3 {
            calls.wait_for(|calls| *calls == n).await.expect("it lives");
            clock.until_sleeping(1).await;
            clock.advance(CALL);
        }
        let (calls, _clock, _steps, mut task) = started(Takes::Panics);
        task.join_next().await.expect("it ends").expect("and not by the panic");
        assert_eq!(*calls.borrow(), 1);
    }
}
