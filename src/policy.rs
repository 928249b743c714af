//! Who may do what: roles, the terms of a tool, and the one function that decides whether a call may run.

use serde::{Deserialize, Serialize};

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

    /// The role that a person names and can give, in either language.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "owner" | "主人" => Some(Self::Owner),
            "trusted" | "信任" => Some(Self::Trusted),
            "member" | "成员" => Some(Self::Member),
            _ => None,
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

/// What a second run of a call would do: decides what recovery may repeat. guarantees.md G4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Changes nothing: run again freely.
    Read,
    /// A second run leaves the same state.
    Idempotent,
    /// A second run would do it twice: never repeated by the machine.
    Effect,
}

impl Effect {
    /// The name in rows.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Idempotent => "idempotent",
            Self::Effect => "effect",
        }
    }

    /// The class of that name; what is unknown counts as the worst.
    pub fn parse(name: &str) -> Self {
        match name {
            "read" => Self::Read,
            "idempotent" => Self::Idempotent,
            _ => Self::Effect,
        }
    }
}

/// For whom a turn runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The lowest role of what is answered.
    pub role: Role,
    /// Nobody but the asker sees the answer: a direct chat.
    pub direct: bool,
}

/// What a tool asks of the asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The least role.
    pub least: Role,
    /// Only in a direct chat: what it shows is nobody else's business.
    pub direct_only: bool,
}

impl Terms {
    /// What the class of a tool asks. design.md §14: strangers have no tools, members read, effects need trusted or owner.
    pub fn of(effect: Effect) -> Self {
        let least = match effect {
            Effect::Read => Role::Member,
            Effect::Idempotent | Effect::Effect => Role::Trusted,
        };
        Self { least, direct_only: false }
    }

    /// The owner alone.
    #[must_use]
    pub fn owner_only(self) -> Self {
        Self { least: Role::Owner, ..self }
    }

    /// Direct chats alone.
    #[must_use]
    pub fn direct_only(self) -> Self {
        Self { direct_only: true, ..self }
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

/// Whether a turn for this asker may use a tool on these terms.
pub fn may_use(asker: Asker, terms: Terms) -> Verdict {
    let fits = asker.role >= terms.least && (asker.direct || !terms.direct_only);
    if fits { Verdict::Allow } else { Verdict::Deny }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_grow_with_the_role() {
        use {Role::*, Verdict::*};
        let classes = [Effect::Read, Effect::Idempotent, Effect::Effect];
        let table = [
            (Stranger, [Deny, Deny, Deny], Deny),
            (Member, [Allow, Deny, Deny], Deny),
            (Trusted, [Allow, Allow, Allow], Deny),
            (Owner, [Allow, Allow, Allow], Allow),
        ];
        for (role, verdicts, owners) in table {
            for direct in [true, false] {
                let asker = Asker { role, direct };
                assert_eq!(classes.map(|effect| may_use(asker, Terms::of(effect))), verdicts, "{role:?}");
                for effect in classes {
                    assert_eq!(may_use(asker, Terms::of(effect).owner_only()), owners, "{role:?}");
                    let private = may_use(asker, Terms::of(effect).direct_only());
                    assert_eq!(private, if direct { may_use(asker, Terms::of(effect)) } else { Deny }, "{role:?}");
                }
            }
            assert_eq!(Role::parse(role.as_str()), role);
        }
        assert_eq!(Role::parse("root"), Stranger);
    }
}
