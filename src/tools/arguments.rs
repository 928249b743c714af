//! Turns the arguments of a call into a tool's own type.
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ToolError;

/// The arguments as a tool's own type.
///
/// # Errors
/// [`ToolError::TellModel`] when they do not fit, which the schema should have told before.
pub(super) fn typed<T: DeserializeOwned>(args: Value) -> Result<T, ToolError> {
    serde_json::from_value(args).map_err(|error| ToolError::TellModel(format!("The arguments do not fit: {error}.")))
}
