//! crawfish: a self-hosted gateway between chat platforms and an agent. Once acknowledged, a message is answered, in
//! order, once.
//!
//! A message's journey, which is also the order in which to read the code:
//!
//! | # | station | file | entry point | what is true afterwards |
//! |---|---|---|---|---|
//! | 1 | channel adapter | `channels/<kind>/src/…` | `Channel::run` | a platform event was read, *not yet acknowledged* |
//! | 2 | normalise | `channels/<kind>/src/inbound.rs` | `inbound(event)` | a platform-free value; pure, tested on recorded payloads |
//! | 3 | access gate | `src/intake/access.rs` | `Gate::admit` | Admit / Pair / Context / Ignore(reason); every kind of event passes here |
//! | 4 | durable inbox | `src/intake.rs`, `src/store.rs` | `Intake::accept` | **commit 1**: the row exists once; only now may the adapter acknowledge its platform |
//! | 5 | session queue | `src/inbox.rs`, `src/session.rs` | `InboxStore::claim` | the oldest waiting messages of one session, under a lease; one active turn a session, fair between sessions |
//! | 6 | worker pool | `src/worker.rs` | `Worker::run` | N sessions at once |
//! | 7 | prompt | `src/agent/prompt.rs`, kept by `src/agent/briefing.rs` | `assemble` | a bounded, deterministic request |
//! | 8 | model | `src/model.rs` | `Model::complete` | a streamed response or a classified error |
//! | 9 | tool loop | `src/agent/turn.rs`, driven by `src/agent.rs` | `Turn::next` | loops 8–9; every step journalled; "started" is committed before an effect tool runs |
//! | 10 | reply filter | `src/reply.rs` | `Outcome::from_text` | Reply, or Silent(reason): NO_REPLY, HEARTBEAT_OK |
//! | 11 | render, split | `channels/<kind>/src/render.rs`, `channels/api/src/split.rs` | `Channel::render` | pure; each part fits one platform message |
//! | 12 | outbox | `src/worker.rs`, `src/outbox.rs` | `InboxStore::finish` | **commit 2**: transcript, a row a part, inbox done, together |
//! | 13 | send | `src/delivery.rs`, `channels/<kind>/src/send.rs` | `Channel::send` | a receipt a part; a send cut off in the middle is *uncertain*, never blindly repeated |
//!
//! Stations meet only in rows and values. 4→5 and 12→13 are wake-ups, with polling as the fallback. `app` wires them and
//! is imported by nobody but `cli`.

// Stations, in the order of a message's journey.
pub mod channels;
pub mod intake;

pub mod inbox;
pub mod session;

pub mod live;
pub mod marks;
pub mod typing;
pub mod worker;

pub mod agent;
pub mod model;
pub mod tools;

pub mod reply;

pub mod outbox;

pub mod delivery;

// The wiring.
pub mod app;
pub mod cli;

// What it does by itself.
pub mod heartbeat;
pub mod schedule;

// How people and programs reach it by HTTP.
pub mod http;
pub mod inspect;

// What the stations stand on.
pub mod approvals;
pub mod audit;
pub mod chats;
pub mod clock;
pub mod config;
pub mod confinement;
pub mod data_dir;
pub mod egress;
pub mod errand;
pub mod halt;
pub mod journal;
pub mod lang;
pub mod ledger;
pub mod lifecycle;
pub mod logs;
pub mod mcp;
pub mod media;
pub mod memory;
pub mod os;
pub mod plan;
pub mod policy;
pub mod secrets;
pub mod settlements;
pub mod skills;
pub mod store;
pub mod subagents;
pub mod supervisor;
pub mod terminal;
pub mod untrusted;
pub mod upkeep;
pub mod workspace;
pub mod zip_directory;
