//! The other ends of the wire, and the judge of what went over it.

pub mod bridge;
pub mod chance;
pub mod checker;
pub mod discord;
pub mod effects;
pub mod embeddings;
#[allow(dead_code, reason = "the adapter's own tests use the rest of it")]
pub mod feishu;
pub mod gateway;
pub mod hub;
pub mod load;
pub mod mark;
pub mod mcp;
mod messages_api;
pub mod model_server;
#[allow(dead_code, reason = "the adapter's own tests use the rest")]
pub mod onebot;
pub mod qq;
pub mod shapes;
pub mod telegram;
pub mod wait;
