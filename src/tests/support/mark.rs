//! Marks in texts, by which a message is known again wherever it turns up: in a prompt, a tool call, an answer.

use std::{fmt, str::FromStr};

/// Message `n` (from 1) of session `session`. Written `mark:s3.17;`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// The session.
    pub session: u32,
    /// Its place in it.
    pub n: u32,
}

impl Mark {
    /// The platform id of the message: `s3.17`.
    pub fn id(self) -> String {
        format!("s{}.{}", self.session, self.n)
    }

    /// The session's name: `s3`.
    pub fn room(self) -> String {
        format!("s{}", self.session)
    }

    /// Every mark of a text, in order.
    pub fn all_in(text: &str) -> Vec<Self> {
        text.split("mark:").skip(1).filter_map(|rest| rest.split_once(';')?.0.parse().ok()).collect()
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mark:s{}.{};", self.session, self.n)
    }
}

impl FromStr for Mark {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (session, n) = text.strip_prefix('s').and_then(|rest| rest.split_once('.')).ok_or(())?;
        Ok(Self { session: session.parse().map_err(drop)?, n: n.parse().map_err(drop)? })
    }
}
