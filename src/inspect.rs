//! What people ask of the store: one list of questions, answered as JSON, the same for `GET /api/…` and for the command
//! line when no gateway runs.
//!
//! The HTTP side turns a request into a [`Query`] and returns what [`answer`] gives; the command line asks the store or, by
//! [`Query::request`], a running gateway. Nothing else produces this JSON.

use channel_api::{InboxId, TurnId};
use serde_json::{Value, json};

use crate::{
    approvals::{By, Decided, Decision, How},
    audit::{self, Head},
    session::SessionKey,
    store::{DeadResolution, SpentAsk, SpentBy, SpentOf, Store, StoreError, TurnsOf},
};

/// The most rows of one answer.
pub const MAX_ROWS: u32 = 500;

/// A question, or one of the three things a person may do to rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    /// `GET /api/sessions?after=&limit=` → `{"sessions": [SessionRow], "next"}`, last active first.
    Sessions {
        /// The last row of the previous page; written `<updated_at>,<key>`.
        after: Option<(i64, SessionKey)>,
        /// At most this many.
        limit: u32,
    },
    /// `GET /api/sessions/{key}` → `{"session": SessionRow}`.
    Session(SessionKey),
    /// `GET /api/sessions/{key}/messages?after=&limit=` → `{"messages": [MessageRow], "next"}`, oldest first.
    Messages {
        /// Whose.
        key: SessionKey,
        /// After this sequence number.
        after: i64,
        /// At most this many.
        limit: u32,
    },
    /// `POST /api/sessions/{key}/reset` → `{}`: a new generation, as `/new` does.
    Reset(SessionKey),
    /// `GET /api/search?q=&limit=` → `{"messages": [MessageRow]}`, newest first.
    Search {
        /// What to look for.
        text: String,
        /// At most this many.
        limit: u32,
    },
    /// `GET /api/turns/{id}` → `{"trace": TurnTrace}`.
    Turn(TurnId),
    /// `GET /api/turns?task=&session=&limit=` → `{"turns": [TurnRow]}`, newest first.
    Turns {
        /// Of this message.
        task: Option<InboxId>,
        /// Of this session.
        session: Option<SessionKey>,
        /// At most this many.
        limit: u32,
    },
    /// `GET /api/usage?by=&since=&limit=` → `{"usage": [SpentRow]}`: what models took and cost, from the day `since` on.
    Usage {
        /// What it is summed by.
        by: SpentBy,
        /// `2026-11-01`; `None` = from the beginning.
        since: Option<String>,
        /// At most this many sums.
        limit: u32,
    },
    /// `GET /api/dlq?after=&limit=` → `{"dead_letters": [DeadLetter], "next"}`, newest first.
    DeadLetters {
        /// After this row.
        after: Option<i64>,
        /// At most this many.
        limit: u32,
    },
    /// `POST /api/dlq/{id}/retry` or `…/drop` → `{}`.
    Resolve {
        /// Which.
        id: InboxId,
        /// How.
        how: DeadResolution,
    },
    /// `GET /api/approvals?all=` → `{"approvals": [Approval]}`, newest first; those that wait alone unless all are asked for.
    Approvals(bool),
    /// `GET /api/approvals/{id}` → `{"approval": Approval, "text"}`.
    Approval(String),
    /// `POST /api/approvals/{id} {"decision", "how"}` → `{"approval": Approval, "done"}`: whether it was decided by this.
    Decide {
        /// Which.
        id: String,
        /// What.
        decision: Decision,
        /// By which way.
        how: How,
    },
    /// `GET /api/approvals/grants` → `{"grants": [Always]}`: what was approved for good, newest first.
    Grants,
    /// `DELETE /api/approvals/grants/{id}` → `{"grant": Always}`: it is asked for again.
    RevokeGrant {
        /// Which.
        id: String,
        /// By which way.
        how: How,
    },
    /// `GET /api/schedules` → `{"schedules": [ScheduleRow]}`, the next one first.
    Schedules,
    /// `GET /api/schedules/{id}` → `{"schedule": ScheduleRow, "coming": [text]}`.
    Schedule(String),
    /// `DELETE /api/schedules/{id}` → `{}`.
    CancelSchedule(String),
    /// `POST /api/schedules/{id}/run` → `{}`: now, besides its own times.
    RunSchedule(String),
    /// `GET /api/heartbeat` → `{"heartbeat": [TickRow + "run": RunState]}`.
    Heartbeat,
    /// `GET /api/audit?after=&since=&kind=&limit=` → `{"audit": [AuditRow], "next"}`, oldest first.
    Audit {
        /// After this row.
        after: i64,
        /// From this time on, epoch milliseconds.
        since: i64,
        /// Of this kind.
        kind: Option<String>,
        /// At most this many.
        limit: u32,
    },
    /// `POST /api/audit/verify {"heads"}` → `{"head": Head | null, "broken": Broken | null}`.
    VerifyAudit(Vec<Head>),
    /// `POST /api/audit/grant {"what", "detail"}` → `{}`: the command line allowed a skill or a server something.
    Granted {
        /// What.
        what: String,
        /// To whom.
        detail: Value,
    },
    /// `GET /api/halt` → `{"halted": {"at", "who"} | null}`.
    Halted,
    /// `POST /api/halt` or `POST /api/resume` → `{"halted": bool, "changed": bool}`.
    SetHalted(bool),
}

/// A question as a request to a running gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// How.
    pub method: Method,
    /// The path's segments, not yet encoded.
    pub path: Vec<String>,
    /// The query's pairs, not yet encoded.
    pub query: Vec<(&'static str, String)>,
    /// The body of what changes something.
    pub body: Value,
}

/// The methods of our own routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Does.
    Post,
    /// Takes away.
    Delete,
}

impl Query {
    /// How to ask a running gateway.
    pub fn request(&self) -> Request {
        let of = |path: &[&str], query: Vec<(&'static str, String)>| Request {
            method: Method::Get,
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            query,
            body: json!({}),
        };
        let number = |n: &u32| ("limit", n.to_string());
        match self {
            Self::Sessions { after, limit } => {
                let mut query = vec![number(limit)];
                query.extend(after.iter().map(|(at, key)| ("after", format!("{at},{key}"))));
                of(&["api", "sessions"], query)
            }
            Self::Session(key) => of(&["api", "sessions", key.as_str()], vec![]),
            Self::Messages { key, after, limit } => {
                of(&["api", "sessions", key.as_str(), "messages"], vec![("after", after.to_string()), number(limit)])
            }
            Self::Reset(key) => {
                Request { method: Method::Post, ..of(&["api", "sessions", key.as_str(), "reset"], vec![]) }
            }
            Self::Search { text, limit } => of(&["api", "search"], vec![("q", text.clone()), number(limit)]),
            Self::Turn(id) => of(&["api", "turns", id.as_str()], vec![]),
            Self::Turns { task, session, limit } => {
                let mut query = vec![number(limit)];
                query.extend(task.iter().map(|task| ("task", task.to_string())));
                query.extend(session.iter().map(|session| ("session", session.to_string())));
                of(&["api", "turns"], query)
            }
            Self::Usage { by, since, limit } => {
                let by = serde_json::to_value(by).ok().and_then(|by| by.as_str().map(str::to_owned));
                let mut query = vec![number(limit), ("by", by.unwrap_or_default())];
                query.extend(since.iter().map(|since| ("since", since.clone())));
                of(&["api", "usage"], query)
            }
            Self::DeadLetters { after, limit } => {
                let mut query = vec![number(limit)];
                query.extend(after.map(|after| ("after", after.to_string())));
                of(&["api", "dlq"], query)
            }
            Self::Resolve { id, how } => {
                Request { method: Method::Post, ..of(&["api", "dlq", id.as_str(), resolution(*how)], vec![]) }
            }
            Self::Approvals(all) => of(&["api", "approvals"], vec![("all", all.to_string())]),
            Self::Approval(id) => of(&["api", "approvals", id], vec![]),
            Self::Decide { id, decision, how } => Request {
                method: Method::Post,
                body: json!({ "decision": decision, "how": how }),
                ..of(&["api", "approvals", id], vec![])
            },
            Self::Grants => of(&["api", "approvals", "grants"], vec![]),
            Self::RevokeGrant { id, how } => Request {
                method: Method::Delete,
                ..of(&["api", "approvals", "grants", id], vec![("how", how.as_str().to_owned())])
            },
            Self::Schedules => of(&["api", "schedules"], vec![]),
            Self::Schedule(id) => of(&["api", "schedules", id], vec![]),
            Self::CancelSchedule(id) => Request { method: Method::Delete, ..of(&["api", "schedules", id], vec![]) },
            Self::RunSchedule(id) => Request { method: Method::Post, ..of(&["api", "schedules", id, "run"], vec![]) },
            Self::Heartbeat => of(&["api", "heartbeat"], vec![]),
            Self::Audit { after, since, kind, limit } => {
                let mut query = vec![number(limit), ("after", after.to_string()), ("since", since.to_string())];
                query.extend(kind.iter().map(|kind| ("kind", kind.clone())));
                of(&["api", "audit"], query)
            }
            Self::VerifyAudit(heads) => {
                let body = json!({ "heads": heads });
                Request { method: Method::Post, body, ..of(&["api", "audit", "verify"], vec![]) }
            }
            Self::Granted { what, detail } => {
                let body = json!({ "what": what, "detail": detail });
                Request { method: Method::Post, body, ..of(&["api", "audit", "grant"], vec![]) }
            }
            Self::Halted => of(&["api", "halt"], vec![]),
            Self::SetHalted(on) => {
                Request { method: Method::Post, ..of(&["api", if *on { "halt" } else { "resume" }], vec![]) }
            }
        }
    }
}

fn resolution(how: DeadResolution) -> &'static str {
    match how {
        DeadResolution::Retry => "retry",
        DeadResolution::Drop => "drop",
    }
}

/// Answers a question from the rows. `now` is epoch milliseconds. A listing that filled its page says in `next` what to
/// ask `after`.
///
/// # Errors
/// [`StoreError::NotFound`] when there is no such row; the others as the store gives them.
pub async fn answer(store: &dyn Store, query: &Query, now: i64) -> Result<Value, StoreError> {
    let most = |limit: &u32| (*limit).clamp(1, MAX_ROWS);
    Ok(match query {
        Query::Sessions { after, limit } => {
            let rows = store.sessions(after.clone(), most(limit)).await?;
            let next = last_of_full(&rows, *limit).map(|row| format!("{},{}", row.updated_at, row.key));
            json!({ "sessions": rows, "next": next })
        }
        Query::Session(key) => json!({ "session": store.session(key).await?.ok_or(StoreError::NotFound)? }),
        Query::Messages { key, after, limit } => {
            store.session(key).await?.ok_or(StoreError::NotFound)?;
            let rows = store.messages(key, *after, most(limit)).await?;
            let next = last_of_full(&rows, *limit).map(|row| row.seq);
            json!({ "messages": rows, "next": next })
        }
        Query::Reset(key) => {
            let stopped = store.reset(key, now).await?;
            json!({ "stopped": stopped })
        }
        Query::Search { text, limit } => json!({ "messages": store.search(text, most(limit)).await? }),
        Query::Turn(id) => json!({ "trace": store.trace(id).await?.ok_or(StoreError::NotFound)? }),
        Query::Turns { task, session, limit } => {
            let of = match (task, session) {
                (Some(task), _) => TurnsOf::Entry(task.clone()),
                (None, Some(session)) => TurnsOf::Session(session.clone()),
                (None, None) => TurnsOf::All,
            };
            json!({ "turns": store.turns(of, most(limit)).await? })
        }
        Query::Usage { by, since, limit } => {
            let (by, since) = (*by, since.clone());
            let ask = SpentAsk { by, of: SpentOf::All, since, until: None, limit: most(limit) };
            json!({ "usage": store.spent(&ask).await? })
        }
        Query::DeadLetters { after, limit } => {
            let rows = store.dead_letters(*after, most(limit)).await?;
            let next = last_of_full(&rows, *limit).map(|row| row.seq);
            json!({ "dead_letters": rows, "next": next })
        }
        Query::Resolve { id, how } => {
            store.resolve_dead(id, *how, now).await?;
            json!({})
        }
        Query::Approvals(all) => json!({ "approvals": store.approvals(*all, MAX_ROWS, now).await? }),
        Query::Approval(id) => {
            let row = store.approval(id).await?.ok_or(StoreError::NotFound)?;
            json!({ "text": row.what(), "approval": row })
        }
        Query::Decide { id, decision, how } => {
            let (done, row) = match store.decide_approval(id, *decision, &By::token(*how), now).await? {
                Decided::Done(row) => (true, row),
                Decided::Over(row) => (false, row),
            };
            json!({ "done": done, "approval": row })
        }
        Query::Grants => json!({ "grants": store.always(MAX_ROWS).await? }),
        Query::RevokeGrant { id, how } => {
            json!({ "grant": store.revoke_always(id, &By::token(*how), now).await? })
        }
        Query::Schedules => json!({ "schedules": store.schedules(None).await? }),
        Query::Schedule(id) => {
            let row = store.schedule(id).await?.ok_or(StoreError::NotFound)?;
            json!({ "coming": row.coming(5), "schedule": row })
        }
        Query::CancelSchedule(id) => {
            store.cancel_schedule(id).await?;
            json!({})
        }
        Query::RunSchedule(id) => {
            store.run_schedule(id, now).await?;
            json!({})
        }
        Query::Heartbeat => {
            let mut ticks = Vec::new();
            for tick in store.last_ticks().await? {
                let run = match &tick.entry {
                    Some(entry) => store.run_state(entry).await?,
                    None => None,
                };
                let mut shown = json!(tick);
                shown["run"] = json!(run);
                ticks.push(shown);
            }
            json!({ "heartbeat": ticks })
        }
        Query::Audit { after, since, kind, limit } => {
            let rows = store.audit_rows(*after, *since, kind.as_deref(), most(limit)).await?;
            let next = last_of_full(&rows, *limit).map(|row| row.seq);
            json!({ "audit": rows, "next": next })
        }
        Query::VerifyAudit(heads) => match audit::verify(store, heads).await? {
            Ok(head) => json!({ "head": head, "broken": null }),
            Err(broken) => json!({ "head": null, "broken": broken }),
        },
        Query::Granted { what, detail } => {
            let (what, detail) = (what.clone(), audit::short_form(detail));
            let who = audit::actor();
            store.audit(vec![audit::Event { at: now, kind: audit::Kind::Grant, who, what, detail }]).await?;
            json!({})
        }
        Query::Halted => {
            let halted = store.halted().await?.map(|(at, who)| json!({ "at": at, "who": who }));
            json!({ "halted": halted })
        }
        Query::SetHalted(on) => {
            let changed = store.set_halted(*on, &audit::actor(), now).await?;
            json!({ "halted": on, "changed": changed })
        }
    })
}

fn last_of_full<T>(rows: &[T], limit: u32) -> Option<&T> {
    rows.last().filter(|_| rows.len() >= limit.clamp(1, MAX_ROWS) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_have_the_routes_the_dashboard_knows() {
        let key = SessionKey::from("agent:main:webhook:b:direct:a%3Ab".to_owned());
        let path = |query: Query| query.request().path.join("/");
        assert_eq!(
            path(Query::Messages { key: key.clone(), after: 3, limit: 9 }),
            "api/sessions/agent:main:webhook:b:direct:a%3Ab/messages"
        );
        let resolve = Query::Resolve { id: "in_1".into(), how: DeadResolution::Drop };
        assert_eq!((resolve.request().method, path(resolve)), (Method::Post, "api/dlq/in_1/drop".to_owned()));
        let sessions = Query::Sessions { after: Some((5, key)), limit: 2 }.request();
        let after = "5,agent:main:webhook:b:direct:a%3Ab".to_owned();
        assert_eq!(sessions.query, [("limit", "2".to_owned()), ("after", after)]);
    }
}
