//! The contract between a chat platform's adapter and the gateway: the values that cross it and the few traits each side
//! implements.
//!
//! An adapter turns what its platform sends into [`Inbound`] values and gives them to [`Intake::accept`]; it renders a
//! [`Reply`] into [`Part`]s and sends each with exactly one visible platform call. It knows nothing of the gateway, of
//! other platforms, of models or of the database.

pub mod address;
pub mod channel;
pub mod context;
pub mod contract;
pub mod crash_point;
pub mod finding;
pub mod http;
pub mod ids;
pub mod inbound;
pub mod json;
pub mod live;
pub mod outbound;
pub mod pulse;
pub mod reach;
pub mod secret;
pub mod seldom;
pub mod socket;
pub mod split;

pub use address::{Address, ChannelId, Conversation, ConversationKind};
pub use channel::{Capabilities, Channel, ChannelError, Format, Rate, TextUnit};
pub use context::{
    Accepted, Batch, ChannelContext, ChannelKv, Clock, Cursor, IgnoredReason, Intake, IntakeError, KvError, LiveEvent,
    Media, MediaError, MediaStream, Moved, Settled, SettledPart, Settlements, kind_of,
};
pub use finding::{Finding, FindingState, GATEWAY_ADDRESS, Said};
pub use http::{HttpBody, HttpEndpoint, HttpRequest, HttpResponse};
pub use ids::{InboxId, PartId, StepId, TurnId};
pub use inbound::{
    Attachment, AttachmentKind, Inbound, InboundKind, MediaRef, MediaSource, QueueMode, ReplyTo, Sender, Trust,
};
pub use live::{LiveEdit, LivePace, Mark, Preview};
pub use outbound::{Button, Level, Part, Receipt, Reconciled, Reply, ReplyKind, SendError, SendKey};
pub use pulse::{Link, Pulse};
pub use secret::Secret;
pub use seldom::Seldom;
pub use socket::{Frame, Socket, SocketEndpoint};
