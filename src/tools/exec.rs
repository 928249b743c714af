//! `exec`: a command in a shell, in the workspace.

use serde::{Deserialize, Serialize};

/// `[tools.exec]`: commands, for the owner alone.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExecConfig {
    /// Whether there is such a tool at all. Off: nothing keeps a command inside the workspace yet.
    pub enabled: bool,
    /// Seconds a command may run when the call does not say; a call may ask for 120 at most.
    pub timeout: u64,
    /// What reads the command line.
    pub shell: Shell,
}

impl Default for ExecConfig {
    fn default() -> Self {
        Self { enabled: false, timeout: 15, shell: Shell::Auto }
    }
}

/// What reads a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shell {
    /// `sh`; on Windows the newest PowerShell there is, else `cmd`.
    Auto,
    /// The system's `sh`.
    Sh,
    /// bash.
    Bash,
    /// Windows PowerShell.
    #[serde(rename = "powershell")]
    PowerShell,
    /// PowerShell 7 and later.
    Pwsh,
    /// The command interpreter of Windows.
    Cmd,
}
