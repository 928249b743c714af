//! Counts the warnings that a test's own thread writes: what anybody can cause must not fill the log.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tracing::{Event, Level, Metadata, Subscriber, span, subscriber::DefaultGuard};

/// The warnings since it was made, of this thread; ends when it is dropped.
pub struct Warnings {
    count: Arc<AtomicUsize>,
    _listening: DefaultGuard,
}

impl Warnings {
    /// Begins to count.
    pub fn begin() -> Self {
        let count = Arc::<AtomicUsize>::default();
        let _listening = tracing::subscriber::set_default(Counter(Arc::clone(&count)));
        Self { count, _listening }
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

struct Counter(Arc<AtomicUsize>);

impl Subscriber for Counter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
