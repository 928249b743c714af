//! Waiting for a condition, with a generous deadline and never for a fixed time.

use std::time::Duration;

/// The deadline of what should take a moment on a machine that is busy with other things.
pub const SOON: Duration = Duration::from_secs(30);

/// Asks until there is an answer.
///
/// # Panics
/// After `deadline`, naming what was waited for.
pub async fn until<T, F>(what: &str, deadline: Duration, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(deadline, asking).await.unwrap_or_else(|_| panic!("waited {deadline:?} for {what}"))
}
