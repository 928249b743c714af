//! Journeys: the real `crawfish` binary, driven over loopback as its users drive it. Looks only at what they see.
//!
//! `support/` holds the other ends of the wire (a bridge, a model server) and the judge of the invariants I1–I7. The
//! long runs scale by environment variables: `CRAWFISH_KILLS`, `CRAWFISH_UPDATES`, `CRAWFISH_STOPS`; `CRAWFISH_SEED`
//! repeats one run's choices.

mod support;

mod agents;
mod anthropic;
mod approvals;
mod bad_inputs;
mod bridges;
mod budget;
mod command_line;
mod context;
mod crash;
mod delivery;
mod discord;
mod doctor;
mod doors;
mod drain;
mod exec;
mod feishu;
mod first_start;
mod groups;
mod heartbeat;
mod hooks;
mod hub;
mod live;
mod mcp;
mod media;
mod memory;
mod message;
mod models;
mod obeying;
mod onebot;
mod order;
mod pairing;
mod poison;
mod process;
mod pseudo;
mod qq;
mod queue;
mod redelivery;
#[cfg(target_os = "linux")]
mod sandbox;
mod schedule;
mod secrets;
mod security;
mod silence;
mod skills;
mod spawn;
mod spreadsheet;
mod telegram;
mod telegram_answers;
mod telegram_live;
mod telegram_media;
mod telegram_storm;
mod telegram_webhook;
mod todo;
mod tool_loop;
mod tool_policy;
mod voice;
mod web_fetch;
mod web_search;
mod webhook;
