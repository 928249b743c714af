//! The other ends of the wire, and the judge of what went over it.

pub mod bridge;
pub mod chance;
pub mod checker;
pub mod effects;
pub mod gateway;
pub mod load;
pub mod mark;
pub mod model_server;
pub mod shapes;
pub mod telegram;
pub mod wait;
