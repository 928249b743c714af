//! How an adapter reaches its platform: HTTP and WebSocket clients that go through the channel's proxy, if it has one.
//!
//! Knows nothing of platforms. Messages are [`channel_api::Frame`]s; TLS is rustls 0.23 with the compiled-in roots.

mod dial;
mod network;
mod websocket;

pub use dial::{Dial, DialError, Stream};
pub use network::{Network, NetworkError};
pub use websocket::Pump;

#[cfg(test)]
mod tests;
