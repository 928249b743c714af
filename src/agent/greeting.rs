//! The greeting after `/new`: the agent says hello in its own voice, once, without tools. Without a model that answers, the
//! gateway's own line takes its place: a new conversation never fails.

use std::{sync::Arc, time::Duration};

use channel_api::ConversationKind;
use serde_json::Value;

use super::{
    Agent, Control, Drive, Ended, Greeting, RunError, TurnRun,
    briefing::Need,
    turn::{Limits, Setup, Turn, toolbox::Offered},
};
use crate::{
    lang::{self, Lang},
    model::{Message, Usage},
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
        let plain = || TurnRun {
            ended: Ended::Notice(lang::new_session(lang)),
            entries: claim.entries.clone(),
            transcript: Vec::new(),
            steps: Vec::new(),
            usage: Usage::default(),
            notes: Vec::new(),
            new_generation: true,
            summary: None,
            then: None,
        };
        if self.config.greeting == Greeting::Plain {
            return Ok(plain());
        }
        let group = newest.inbound.conversation.kind == ConversationKind::Group;
        let asker = Asker { role: newest.role, direct: !group };
        let skills = self.briefing.skills();
        let need = Need {
            role: newest.role,
            memory: newest.role == Role::Owner && !group,
            silent: false,
            channel: newest.inbound.channel.as_str(),
            model: self.model.name(),
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
        let drive = Drive {
            agent: self,
            lease: &claim.lease,
            task: newest.id.clone(),
            control,
            tools: Registry::default(),
            prompt: Value::Null,
            asker,
            entries: claim.entries.clone(),
            turn: Turn::new(setup),
            n: claim.resume.as_ref().and_then(|steps| steps.iter().map(|step| step.n + 1).max()).unwrap_or(0),
            steps: Vec::new(),
            usage: Usage::default(),
            began: self.clock.monotonic(),
            durable_due: false,
            asked_wait: Duration::ZERO,
            shown: String::new(),
            sizes: Value::Null,
        };
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
        Ok(TurnRun { ended, steps: run.steps, usage: run.usage, notes: run.notes, ..plain() })
    }
}
