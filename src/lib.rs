//! crawfish: a self-hosted gateway between chat platforms and an agent.

// Stations, in the order of a message's journey.
pub mod agent;
pub mod channels;
pub mod data_dir;
pub mod delivery;
pub mod inbox;
pub mod intake;
pub mod model;
pub mod outbox;
pub mod session;
pub mod tools;
pub mod worker;

// What the stations stand on.
pub mod clock;
pub mod journal;
pub mod lang;
pub mod lifecycle;
pub mod media;
pub mod os;
pub mod policy;
pub mod reply;
pub mod secrets;
pub mod reply;
pub mod secrets;
pub mod settlements;
pub mod skills;
pub mod store;
pub mod supervisor;
pub mod upkeep;
pub mod workspace;
