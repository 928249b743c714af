//! Skills: folders with a SKILL.md that teach the agent a task. The model sees name, description and place of each, and
//! reads the file when one fits.

/// One skill as the prompt lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillEntry {
    /// Its name, as its author wrote it.
    pub name: String,
    /// When to use it.
    pub description: String,
    /// Where its SKILL.md is, as the agent should write it for `read` (the home folder as `~`).
    pub location: String,
}
