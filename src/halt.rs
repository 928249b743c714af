//! The brake: nothing new is begun until somebody says so, and what reaches the commands that go on after their turn.
//!
//! Messages are still accepted and kept; effect tools refuse; schedules and the heartbeat rest. The truth is a row (it
//! survives a restart); this is its copy in memory. security.md, ASI10.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::tools::exec::Commands;

/// The copy in memory, shared by all who heed it.
#[derive(Clone, Default)]
pub struct Halt(Arc<Inner>);

#[derive(Default)]
struct Inner {
    on: AtomicBool,
    /// The commands of the gateway, and whose they can be.
    commands: Mutex<Vec<(Commands, String)>>,
}

impl fmt::Debug for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Halt").field(&self.is_on()).finish()
    }
}

impl Halt {
    /// Nothing new may be begun.
    pub fn is_on(&self) -> bool {
        self.0.on.load(Ordering::Acquire)
    }

    /// As the row says.
    pub fn set(&self, on: bool) {
        self.0.on.store(on, Ordering::Release);
    }

    /// From now on [`Halt::end_jobs`] reaches the commands of this agent.
    pub fn reaches(&self, commands: &Commands, agent: &str) {
        self.commands().push((commands.clone(), agent.to_owned()));
    }

    /// Ends every command that goes on after its turn; how many.
    pub fn end_jobs(&self) -> usize {
        let mut ended = 0;
        for (commands, agent) in self.commands().iter() {
            for job in commands.jobs().of(agent).iter().filter(|job| job.ended().is_none()) {
                job.kill();
                ended += 1;
            }
        }
        ended
    }

    fn commands(&self) -> std::sync::MutexGuard<'_, Vec<(Commands, String)>> {
        self.0.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
