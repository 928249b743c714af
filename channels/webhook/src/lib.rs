//! The generic webhook: any program that can make an HTTP request becomes a chat platform. protocols.md §5.2.
//!
//! A bridge posts signed messages to `/channels/webhook/<account>` and gets the answer on the same connection (`Prefer:
//! wait`), as a stream of events, by a signed callback, or by asking for it later. Nothing is acknowledged before the
//! gateway has stored it, and an answer that its caller did not get goes out by callback under the same id.

// The journey of a request, in order.
mod auth;
mod inbound;
mod map;

mod answer;
mod wait;
mod webhook;

// The journey of an answer.
mod reach;
mod render;
mod send;

mod config;

pub use config::{Config, ConfigError, Profile, Secrets};
pub use map::Map;
pub use webhook::Webhook;

#[cfg(test)]
mod tests;
