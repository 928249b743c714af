//! Who may do what: roles, and the one function that decides whether a call may run.

use serde::{Deserialize, Serialize};

use crate::tools::Effect;

/// What a sender may do. Follows the immutable sender id, never a name. Ordered: a greater role may do more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Admitted only by `"*"` or an open group: no tools, no workspace files.
    Stranger,
    /// Allow-listed or paired: read tools in their own scope.
    Member,
    /// Named in `trusted`: effects too.
    Trusted,
    /// Named in `owners`, or holding the gateway's token: everything.
    Owner,
}

impl Role {
    /// The name in rows and configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::Member => "member",
            Self::Trusted => "trusted",
            Self::Owner => "owner",
        }
    }

    /// The role of that name; what is unknown has no rights.
    pub fn parse(name: &str) -> Self {
        match name {
            "owner" => Self::Owner,
            "trusted" => Self::Trusted,
            "member" => Self::Member,
            _ => Self::Stranger,
        }
    }
}

/// The decision about one tool for one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may run.
    Allow,
    /// It may not, and is not shown to the model.
    Deny,
}

/// Whether a turn of this role may use tools of this class. design.md §14: strangers have no tools, members read,
/// effects need trusted or owner.
pub fn may_call(role: Role, effect: Effect) -> Verdict {
    let needed = match effect {
        Effect::Read => Role::Member,
        Effect::Idempotent | Effect::Effect => Role::Trusted,
    };
    if role >= needed { Verdict::Allow } else { Verdict::Deny }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_grow_with_the_role() {
        use {Role::*, Verdict::*};
        let table = [
            (Stranger, [Deny, Deny, Deny]),
            (Member, [Allow, Deny, Deny]),
            (Trusted, [Allow, Allow, Allow]),
            (Owner, [Allow, Allow, Allow]),
        ];
        for (role, verdicts) in table {
            assert_eq!(
                [Effect::Read, Effect::Idempotent, Effect::Effect].map(|effect| may_call(role, effect)),
                verdicts,
                "{role:?}"
            );
            assert_eq!(Role::parse(role.as_str()), role);
        }
        assert_eq!(Role::parse("root"), Stranger);
    }
}
