//! The exit codes: those of sysexits.h, and two of our own. bad-inputs.md names the cases.

use std::process::ExitCode;

use crate::{
    app::{RunEnd, StartError},
    config::ConfigErrors,
    data_dir::DataDirError,
    store::{StoreError, sqlite::OpenError},
};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// As asked.
    Ok = 0,
    /// A check found something, or nothing was found.
    Failure = 1,
    /// The command line is wrong.
    Usage = 64,
    /// Data is damaged or not what it should be.
    Data = 65,
    /// A file is not there.
    NoInput = 66,
    /// The database belongs to a newer version.
    Newer = 67,
    /// Something needed does not answer.
    Unavailable = 69,
    /// A fault of our own.
    Software = 70,
    /// The system refused: a taken port, no more files.
    Os = 71,
    /// Reading or writing failed.
    Io = 74,
    /// Another gateway runs here.
    Running = 75,
    /// The configuration is wrong.
    Config = 78,
    /// A second signal.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<RunEnd> for Exit {
    fn from(end: RunEnd) -> Self {
        match end {
            RunEnd::Cleanly => Self::Ok,
            RunEnd::TaskDied(_) => Self::Software,
            RunEnd::Damaged => Self::Data,
        }
    }
}

impl From<&ConfigErrors> for Exit {
    fn from(errors: &ConfigErrors) -> Self {
        match errors.exit {
            66 => Self::NoInput,
            74 => Self::Io,
            _ => Self::Config,
        }
    }
}

impl From<&StartError> for Exit {
    fn from(error: &StartError) -> Self {
        match error {
            StartError::DataDir(DataDirError::Held { .. }) => Self::Running,
            StartError::DataDir(DataDirError::Io { .. }) | StartError::Workspace { .. } => Self::Io,
            StartError::Store { source, .. } => match source {
                OpenError::Newer { .. } => Self::Newer,
                OpenError::Corrupt(_) => Self::Data,
                _ => Self::Io,
            },
            StartError::Recover(StoreError::Corrupt(_)) => Self::Data,
            StartError::Recover(_) => Self::Unavailable,
            StartError::Section { .. } => Self::Config,
            StartError::Listen { .. } => Self::Os,
        }
    }
}
