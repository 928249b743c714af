//! The greeting after `/new`: the agent says hello in its own voice, once, without tools. Without a model that answers, the
//! gateway's own line takes its place: a new conversation never fails.

use std::sync::Arc;

use channel_api::ConversationKind;

use super::{
    Agent, Control, Ended, Greeting, RunError, TurnRun,
    briefing::Need,
    turn::{Limits, Setup, Turn, toolbox::Offered},
};
use crate::{
    lang::{self, Lang},
    model::Message,
    policy::{Asker, Role},
    reply::{Outcome, Policy},
    store::{Claim, InboxEntry},
    tools::Registry,
};

impl Agent {
    /// Begins a new conversation: its first words are the answer to `/new`.
    pub(super) async fn begin_anew(
        &self,
        claim: &Claim,
        control: &Control,
        newest: &InboxEntry,
        lang: Lang,
    ) -> Result<TurnRun, RunError> {
        let plain = || TurnRun { new_generation: true, ..TurnRun::notice(claim, lang::new_session(lang)) };
        if self.config.greeting == Greeting::Plain {
            return Ok(plain());
        }
        let model = self.model_of(claim);
        let group = newest.inbound.conversation.kind == ConversationKind::Group;
        let asker = Asker { role: newest.role, direct: !group };
        let skills = self.briefing.skills();
        let need = Need {
            mode: super::prompt::Mode::Full,
            role: newest.role,
            memory: newest.role == Role::Owner && !group,
            silent: false,
            channel: newest.inbound.channel.as_str(),
            model: model.name(),
            lang: self.config.lang.unwrap_or_else(Lang::current),
        };
        let setup = Setup {
            system: self.briefing.brief(&need, &skills, &[]).text.clone(),
            history: Vec::new(),
            input: vec![Message::user(lang::greeting_task(lang))],
            limits: Limits { max_rounds: 1, ..Limits::default() },
            lang,
            tools: Arc::new(Offered::default()),
        };
        let mut drive = self.drive(claim, control, asker, Turn::new(setup), Registry::default());
        drive.n = claim.resume.as_ref().and_then(|steps| steps.iter().map(|step| step.n + 1).max()).unwrap_or(0);
        let run = match drive.finish_turn().await {
            Err(RunError::Retry(..)) => return Ok(plain()),
            run => run?,
        };
        // What was said belongs to no conversation: the new one begins with what the person says.
        let ended = match &run.ended {
            Ended::Answer(raw) => match Outcome::from_text(raw, &Policy::default()) {
                Outcome::Reply(reply) => Ended::Notice(reply.text),
                Outcome::Silent(_) => plain().ended,
            },
            Ended::Stopped => Ended::Stopped,
            _ => plain().ended,
        };
        Ok(TurnRun { ended, steps: run.steps, usage: run.usage, costs: run.costs, notes: run.notes, ..plain() })
    }
}
