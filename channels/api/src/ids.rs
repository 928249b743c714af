//! Identifiers: a two-letter prefix and a ULID, e.g. `in_01JDVW0X3M7Q8R9S0T1V2W3X4Y` (29 characters).
//!
//! An id names a row and appears as a tracing field under the same name everywhere. Order never comes from an id: it
//! comes from the INTEGER sequence numbers of the store.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// A new id that no other row has (48 bits of time, 80 bits of chance).
            pub fn generate() -> Self {
                Self(format!(concat!($prefix, "_{}"), ulid::Ulid::generate()))
            }

            /// The id as it is stored and shown.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<String> for $name {
            /// Takes an id read from a row or a request as it is; an unknown one simply names nothing.
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// One accepted message (`in_…`); also the `taskId` of the web chat.
    InboxId,
    "in"
);
id!(
    /// One turn of the agent (`tn_…`).
    TurnId,
    "tn"
);
id!(
    /// One model or tool call within a turn (`st_…`).
    StepId,
    "st"
);
id!(
    /// One outgoing platform message (`pt_…`); the idempotency key on platforms that take one.
    PartId,
    "pt"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_short_prefixed_and_distinct() {
        let (a, b) = (InboxId::generate(), InboxId::generate());
        assert!(a.as_str().starts_with("in_"));
        assert_eq!(a.as_str().len(), 29);
        assert_ne!(a, b);
    }
}
