//! crawfish: a self-hosted gateway between chat platforms and an agent.

// Stations, in the order of a message's journey.
pub mod channels;
pub mod intake;

pub mod inbox;
pub mod session;

pub mod worker;

pub mod agent;
pub mod model;
pub mod tools;

pub mod reply;

pub mod outbox;

pub mod delivery;

// What the stations stand on.
pub mod clock;
pub mod data_dir;
pub mod journal;
pub mod lang;
pub mod lifecycle;
pub mod media;
pub mod os;
pub mod policy;
pub mod secrets;
pub mod settlements;
pub mod skills;
pub mod store;
pub mod supervisor;
pub mod upkeep;
pub mod workspace;
