//! crawfish: a self-hosted gateway between chat platforms and an agent.

// Stations, in the order of a message's journey.
pub mod agent;
pub mod channels;
pub mod delivery;
pub mod inbox;
pub mod intake;
pub mod model;
pub mod outbox;
pub mod session;
pub mod tools;

// What the stations stand on.
pub mod clock;
pub mod journal;
pub mod lang;
pub mod lifecycle;
pub mod os;
pub mod policy;
pub mod reply;
pub mod secrets;
pub mod reply;
pub mod skills;
pub mod store;
pub mod workspace;
