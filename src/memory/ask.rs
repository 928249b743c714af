//! What people ask of the memory: one list for HTTP, where the routes are, and for the command line.

use serde_json::{Value, json};

use super::{Memories, Memory, MemoryError, Scope, held::To};
use crate::inspect::{Method, Request};

/// A question or a decision. `agent` is an agent's id.
#[derive(Clone, Debug, PartialEq)]
pub enum MemoryQuery {
    /// `GET /api/memory/search?agent=&q=&limit=` → `{"found": Found}`: as the owner's direct chat finds it.
    Search {
        /// Whose notes.
        agent: String,
        /// The question.
        query: String,
        /// At most this many passages.
        limit: u32,
    },
    /// `POST /api/memory/reindex?agent=` → `{"count": NoteCount}`: makes the index again from the files.
    Reindex {
        /// Whose notes.
        agent: String,
    },
    /// `GET /api/memory/progress?agent=` → `{"progress": Progress}`.
    Progress {
        /// Whose notes.
        agent: String,
    },
    /// `GET /api/memory/quarantine?agent=` → `{"held": [Held]}`.
    Held {
        /// Whose.
        agent: String,
    },
    /// `POST /api/memory/quarantine/{id}/accept?agent=&to=` → `{"note": path}`.
    Accept {
        /// Whose.
        agent: String,
        /// Which.
        id: String,
        /// Where it goes.
        to: To,
    },
    /// `POST /api/memory/quarantine/{id}/drop?agent=` → `{}`.
    Drop {
        /// Whose.
        agent: String,
        /// Which.
        id: String,
    },
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is no such agent, or nothing waits under this id.
    #[error("not found")]
    NotFound,
    /// The memory could not do it.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl MemoryQuery {
    /// How to ask a running gateway.
    pub fn request(&self) -> Request {
        let of = |method, path: &[&str], query: Vec<(&'static str, String)>| Request {
            method,
            path: ["api", "memory"].iter().chain(path).map(|part| (*part).to_owned()).collect(),
            query,
            body: json!({}),
        };
        let whose = |agent: &String| ("agent", agent.clone());
        match self {
            Self::Search { agent, query, limit } => {
                let asked = vec![whose(agent), ("q", query.clone()), ("limit", limit.to_string())];
                of(Method::Get, &["search"], asked)
            }
            Self::Reindex { agent } => of(Method::Post, &["reindex"], vec![whose(agent)]),
            Self::Progress { agent } => of(Method::Get, &["progress"], vec![whose(agent)]),
            Self::Held { agent } => of(Method::Get, &["quarantine"], vec![whose(agent)]),
            Self::Accept { agent, id, to } => {
                let to = if *to == To::Owner { "owner" } else { "asked" };
                of(Method::Post, &["quarantine", id, "accept"], vec![whose(agent), ("to", to.to_owned())])
            }
            Self::Drop { agent, id } => of(Method::Post, &["quarantine", id, "drop"], vec![whose(agent)]),
        }
    }

    fn agent(&self) -> &str {
        match self {
            Self::Search { agent, .. }
            | Self::Reindex { agent }
            | Self::Progress { agent }
            | Self::Held { agent }
            | Self::Accept { agent, .. }
            | Self::Drop { agent, .. } => agent,
        }
    }
}

impl Memories {
    /// Answers.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn answer(&self, query: &MemoryQuery) -> Result<Value, AskError> {
        let memory: &Memory = self.get(query.agent()).ok_or(AskError::NotFound)?;
        Ok(match query {
            MemoryQuery::Search { agent, query, limit } => {
                let found = memory.search(&Scope::owner(agent), query, *limit as usize).await?;
                json!({ "found": found })
            }
            MemoryQuery::Reindex { .. } => json!({ "count": memory.reindex().await? }),
            MemoryQuery::Progress { .. } => json!({ "progress": memory.progress() }),
            MemoryQuery::Held { .. } => json!({ "held": memory.held() }),
            MemoryQuery::Accept { id, to, .. } => {
                json!({ "note": memory.accept(id, *to).await?.ok_or(AskError::NotFound)? })
            }
            MemoryQuery::Drop { id, .. } => {
                if !memory.discard(id).await? {
                    return Err(AskError::NotFound);
                }
                json!({})
            }
        })
    }
}
