//! Places where a test may end the process at once, as a crash would; nothing of them is left in a normal build.
//!
//! A test build (the feature `failpoints` of `fail`, which only the gateway's dev-dependencies ask for) reads the
//! environment variable `FAILPOINTS`, e.g. `intake.committed=3*off->return`: the fourth time the process comes by, it
//! aborts, with nothing flushed, closed or unwound.

/// Every crash point, in the order of a message's journey. A name that is not here does not compile.
pub const POINTS: &[&str] = &[
    // Station 4: before commit 1, and between it and the answer to the adapter.
    "intake.routed",
    "intake.committed",
    // The store's writer: an open transaction with nothing in it, with everything in it, and a commit nobody knows of.
    "commit.begun",
    "commit.written",
    "commit.done",
    // Stations 5 and 6.
    "claim.asked",
    "claim.done",
    "turn.begun",
    // Stations 7 to 9.
    "history.read",
    "model.asked",
    "model.answered",
    "tool.planned",
    "tool.started",
    "tool.ran",
    "tool.recorded",
    "file.written",
    "file.renamed",
    // Stations 10 to 12.
    "answer.rendered",
    "finish.done",
    "finish.told",
    // Station 13.
    "part.sending",
    "part.sent",
    "part.settled",
    // The webhook's own acknowledgement.
    "webhook.accepted",
    // A start.
    "recover.begun",
    "recover.done",
    "start.ready",
];

/// The crash points of single adapters: `<kind>.<station>`. Each adapter's own journeys pass them.
pub const ADAPTERS: &[&str] = &[
    // A scheduled run is due and not queued; it is queued. A hook's call is kept and nobody told its caller.
    "schedule.due",
    "schedule.fired",
    "hook.kept",
    // A preview was shown and is not kept; it is kept. Only where a channel shows one.
    "preview.begun",
    "preview.stored",
    // What mattered was saved, the summary is not written. Only where a conversation is compacted.
    "compact.saved",
    // An update was taken and nothing is stored; it is stored and Telegram does not know it.
    "telegram.batch",
    "telegram.stored",
    // An event was read and nothing is stored; it is stored and QQ does not know it; an answer has its number.
    "qq.event",
    "qq.stored",
    "qq.numbered",
    // An event was read and nothing is stored; it is stored and Feishu does not know it.
    "feishu.event",
    "feishu.stored",
];

/// Whether a crash point of this name is listed.
pub const fn listed(name: &str) -> bool {
    is_in(POINTS, name) || is_in(ADAPTERS, name)
}

const fn is_in(points: &[&str], name: &str) -> bool {
    let mut n = 0;
    while n < points.len() {
        let (a, b) = (points[n].as_bytes(), name.as_bytes());
        let mut same = a.len() == b.len();
        let mut k = 0;
        while same && k < a.len() {
            same = a[k] == b[k];
            k += 1;
        }
        if same {
            return true;
        }
        n += 1;
    }
    false
}

/// Ends the process here when a test asks for it.
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {{
        const _: () = assert!($crate::crash_point::listed($name), "add the name to channel_api::crash_point");
        (|| $crate::crash_point::fail::fail_point!($name, |_| -> () { ::std::process::abort() }))();
    }};
}

/// Panics here when a test asks for it by a word of the text: `FAILPOINTS='turn.said=return(WORD)'`.
#[macro_export]
macro_rules! panic_point {
    ($name:literal, $text:expr) => {{
        (|| {
            $crate::crash_point::fail::fail_point!($name, |word: Option<String>| -> () {
                let word = word.unwrap_or_default();
                assert!(word.is_empty() || !$text.contains(&word), "a test asked for this panic");
            })
        })();
    }};
}

/// A time to wait, in any unit; none when a test cannot wait so long: `FAILPOINTS='turn.pause=return'`.
#[macro_export]
macro_rules! pause_point {
    ($name:literal, $pause:expr) => {{
        let pause = $pause;
        (|| {
            $crate::crash_point::fail::fail_point!($name, |_| Default::default());
            pause
        })()
    }};
}

pub use fail;
