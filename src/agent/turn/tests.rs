//! The turn's tables of behaviour and its properties, driven by a scripted model and tools that count.

use std::{collections::HashMap, time::Duration};

use proptest::prelude::*;

use super::*;

/// A toolbox with one tool of each class, a skill and the usual synonyms.
pub(super) struct Bench;

impl Toolbox for Bench {
    fn resolve(&self, name: &str) -> Option<Resolved> {
        match name.trim().trim_start_matches("functions.").to_ascii_lowercase().as_str() {
            "read" | "read_file" => Some(Resolved::Tool("read".into())),
            "write" | "write_file" => Some(Resolved::Tool("write".into())),
            "send" => Some(Resolved::Tool("send".into())),
            "final_answer" => Some(Resolved::FinalAnswer),
            "weather" => Some(Resolved::Skill("skills/weather/SKILL.md".into())),
            _ => None,
        }
    }

    fn effect(&self, tool: &str) -> Effect {
        match tool {
            "read" => Effect::Read,
            "write" => Effect::Idempotent,
            _ => Effect::Effect,
        }
    }

    fn check_arguments(&self, _tool: &str, raw: &str) -> Result<Arguments, ArgumentError> {
        if let Some(rest) = raw.strip_suffix(",}") {
            let value = serde_json::from_str(&format!("{rest}}}")).map_err(|e| ArgumentError(e.to_string()))?;
            return Ok(Arguments { value, repairs: vec!["trailing comma".into()] });
        }
        match serde_json::from_str::<Value>(raw) {
            Ok(value) if value.is_object() => Ok(Arguments { value, repairs: Vec::new() }),
            _ => Err(ArgumentError("not a JSON object".into())),
        }
    }

    fn specs(&self) -> Vec<ToolSpec> {
        ["read", "write", "send"]
            .map(|name| ToolSpec {
                name: name.into(),
                description: String::new(),
                parameters: json!({"type": "object"}),
            })
            .into()
    }
}

fn setup() -> Setup {
    Setup {
        system: "rules".into(),
        history: Vec::new(),
        input: vec![user("hi")],
        limits: Limits::default(),
        lang: Lang::En,
        tools: Arc::new(Bench),
    }
}

fn user(text: &str) -> Message {
    Message::user(text)
}

fn says(text: &str) -> ModelResponse {
    ModelResponse { text: text.into(), ..Default::default() }
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
}

fn calls(calls: &[ToolCall]) -> ModelResponse {
    ModelResponse { calls: calls.to_vec(), ..Default::default() }
}

fn result(id: &str, name: &str, text: &str) -> Message {
    Message::Tool { call_id: id.into(), name: name.into(), text: text.into() }
}

fn asks(turn: &mut Turn) -> ModelRequest {
    match turn.next() {
        Step::CallModel(request) => {
            assert_eq!(order::check(&request.messages), Ok(()), "{:?}", request.messages);
            request
        }
        other => panic!("expected a model call, got {other:?}"),
    }
}

fn runs(turn: &mut Turn) -> Vec<PlannedCall> {
    match turn.next() {
        Step::RunTools(calls) => calls,
        other => panic!("expected tools, got {other:?}"),
    }
}

fn ends(turn: &mut Turn) -> Ending {
    match turn.next() {
        Step::Finish(ending) => ending,
        other => panic!("expected the end, got {other:?}"),
    }
}

fn answers(turn: &mut Turn, response: ModelResponse) {
    asks(turn);
    turn.model_answered(response);
}

/// One round: the model makes the call, it runs and gives this.
fn round(turn: &mut Turn, made: ToolCall, gives: &str) {
    answers(turn, calls(&[made]));
    if let Step::RunTools(planned) = turn.next() {
        for plan in planned {
            turn.tool_finished(&plan.call_id, Ok(gives.to_owned()));
        }
    }
}

fn answer(text: &str) -> Ending {
    Ending::Answer { text: text.into(), cut: false, filtered: false }
}

fn reason(ending: Ending) -> FailReason {
    match ending {
        Ending::Failed { reason, .. } => reason,
        other => panic!("expected a failure, got {other:?}"),
    }
}

fn last_text(request: &ModelRequest) -> &str {
    match request.messages.last() {
        Some(Message::User { text, .. } | Message::Assistant { text, .. } | Message::Tool { text, .. }) => text,
        None => "",
    }
}

#[test]
fn a_plain_answer() {
    let mut turn = Turn::new(setup());
    let request = asks(&mut turn);
    assert_eq!((request.system.as_str(), request.tools.len()), ("rules", 3));
    assert_eq!(request.messages, [user("hi")]);
    assert_eq!(turn.next(), Step::CallModel(request), "asking again changes nothing");
    assert_eq!(turn.round(), 1);
    turn.model_answered(says("hello"));
    assert_eq!(ends(&mut turn), answer("hello"));
    assert_eq!(turn.transcript(), [user("hi"), assistant("hello".into(), vec![], None)]);
    assert!(turn.notes().is_empty());
    turn.model_answered(says("late"));
    turn.stop();
    assert_eq!(ends(&mut turn), answer("hello"), "the end is the end");
}

#[test]
fn tools_run_and_their_results_follow_in_the_calls_order() {
    let mut turn = Turn::new(setup());
    let opaque = Some(json!({"reasoning": "r"}));
    asks(&mut turn);
    turn.model_answered(ModelResponse {
        text: "Let me look.".into(),
        calls: vec![call("c1", "read_file", r#"{"path":"a"}"#), call("c2", "send", r#"{"to":"x",}"#)],
        opaque: opaque.clone(),
        ..Default::default()
    });
    let planned = runs(&mut turn);
    assert_eq!(
        planned[0],
        PlannedCall {
            call_id: "c1".into(),
            name: "read".into(),
            args: json!({"path":"a"}),
            effect: Effect::Read,
            round: 1
        }
    );
    assert_eq!((planned[1].name.as_str(), planned[1].effect), ("send", Effect::Effect));
    assert_eq!(runs(&mut turn), [], "no call is handed out twice");
    turn.tool_finished("c2", Err("refused".into()));
    turn.tool_finished("c9", Ok("nobody asked".into()));
    assert_eq!(runs(&mut turn), []);
    turn.tool_finished("c1", Ok("text".into()));
    turn.tool_finished("c1", Ok("again".into()));
    let request = asks(&mut turn);
    let expected = [
        user("hi"),
        assistant(
            "Let me look.".into(),
            vec![call("c1", "read", r#"{"path":"a"}"#), call("c2", "send", r#"{"to":"x"}"#)],
            opaque,
        ),
        result("c1", "read", "text"),
        result("c2", "send", "refused"),
    ];
    assert_eq!(request.messages, expected);
    turn.model_answered(says("done"));
    assert_eq!(ends(&mut turn), answer("done"));
    assert_eq!(turn.transcript()[..4], expected);
    assert_eq!(turn.notes(), ["send: arguments repaired (trailing comma)"]);
}

#[test]
fn bad_calls_are_answered_inside_the_turn() {
    let cut = ModelResponse { finish: Finish::Length, ..calls(&[call("c1", "write", r#"{"text":"lo"#)]) };
    for (name, response, expected) in [
        (
            "unknown",
            calls(&[call("c1", "fly", "{}")]),
            "There is no tool `fly`. The tools are: `read`, `send`, `write`. Call one of them by its exact name.",
        ),
        ("arguments", calls(&[call("c1", "read", "[]")]), "not a JSON object"),
        ("cut", cut, CUT_ARGUMENTS),
        (
            "empty final answer",
            calls(&[call("c1", "final_answer", "{}")]),
            "No text to deliver. Answer in plain words instead of a call.",
        ),
    ] {
        let mut turn = Turn::new(setup());
        answers(&mut turn, response);
        assert_eq!(last_text(&asks(&mut turn)), expected, "{name}");
    }
}

#[test]
fn complete_calls_of_a_cut_response_run() {
    let mut turn = Turn::new(setup());
    let response = calls(&[call("c1", "read", r#"{"path":"a"}"#), call("c2", "write", "")]);
    answers(&mut turn, ModelResponse { finish: Finish::Cut, ..response });
    assert_eq!(runs(&mut turn).iter().map(|plan| plan.call_id.as_str()).collect::<Vec<_>>(), ["c1"]);
}

#[test]
fn bad_input_56_three_rounds_of_unknown_tools_end_the_turn() {
    let mut turn = Turn::new(setup());
    for n in 0..2 {
        round(&mut turn, call(&format!("c{n}"), &format!("fly{n}"), "{}"), "");
    }
    round(&mut turn, call("c3", "read", "{}"), "x");
    for n in 4..7 {
        round(&mut turn, call(&format!("c{n}"), &format!("fly{n}"), "{}"), "");
    }
    assert_eq!(reason(ends(&mut turn)), FailReason::UnknownTools);
}

#[test]
fn bad_input_57_call_ids_become_unique() {
    let mut turn = Turn::new(Setup {
        history: vec![
            user("a"),
            assistant(String::new(), vec![call("x", "read", "{}")], None),
            result("x", "read", "1"),
        ],
        ..setup()
    });
    answers(
        &mut turn,
        calls(&[call("x", "read", "{}"), call("", "read", "{}"), call("y", "read", "{}"), call("y", "read", "{}")]),
    );
    let ids: Vec<String> = runs(&mut turn).into_iter().map(|plan| plan.call_id).collect();
    assert_eq!(ids, ["call_r1_0", "call_r1_1", "y", "call_r1_3"]);
}

#[test]
fn bad_input_58_of_the_calls_over_the_cap_one_is_answered_for_all() {
    for (many, unknown) in [(17_usize, 0), (200, 0), (5_000, 9)] {
        let mut turn = Turn::new(setup());
        let many: Vec<ToolCall> = (0..many)
            .map(|n| call(&format!("c{n}"), if n < unknown { "nope" } else { "read" }, &format!(r#"{{"n":{n}}}"#)))
            .collect();
        answers(&mut turn, calls(&many));
        let planned = runs(&mut turn);
        assert_eq!(planned.len(), 16 - unknown);
        for plan in planned {
            turn.tool_finished(&plan.call_id, Ok("x".into()));
        }
        let request = asks(&mut turn);
        assert_eq!(request.messages.len(), 2 + 17, "sixteen, and one for the rest");
        assert!(matches!(request.messages.last(), Some(Message::Tool { text, .. }) if text == TOO_MANY));
        let Message::Assistant { calls, .. } = &request.messages[1] else { panic!("{:?}", request.messages[1]) };
        assert_eq!(calls.len(), 17);
        assert!(turn.notes().contains(&format!("{} calls in one response, 16 kept", many.len())), "{:?}", turn.notes());
    }
}

#[test]
fn the_last_round_has_no_tools() {
    let limits = Limits { max_rounds: 3, ..Limits::default() };
    for (last, expected) in [
        (says("that is all"), answer("that is all")),
        (
            ModelResponse { text: "one more".into(), ..calls(&[call("c", "read", "{}")]) },
            Ending::Failed { reason: FailReason::RoundLimit(3), text: Some("one more".into()) },
        ),
        (calls(&[call("c", "final_answer", r#"{"answer":"so"}"#)]), answer("so")),
        (says(""), Ending::Failed { reason: FailReason::Empty, text: None }),
    ] {
        let mut turn = Turn::new(Setup { limits, ..setup() });
        for n in 0..2 {
            assert!(!asks(&mut turn).tools.is_empty());
            round(&mut turn, call(&format!("c{n}"), "read", &format!(r#"{{"n":{n}}}"#)), "x");
        }
        let request = asks(&mut turn);
        assert!(request.tools.is_empty());
        assert!(matches!(request.messages.last(), Some(Message::Tool { .. })), "no nudge after results");
        turn.model_answered(last);
        assert_eq!(ends(&mut turn), expected);
    }
}

#[test]
fn a_loop_is_told_and_then_ended() {
    let mut turn = Turn::new(setup());
    for n in 1..=5 {
        let request = asks(&mut turn);
        assert_eq!(last_text(&request).contains("same result"), n > 3, "round {n}");
        round(&mut turn, call(&format!("c{n}"), "read", r#"{"path":"a"}"#), "same");
    }
    assert_eq!(reason(ends(&mut turn)), FailReason::Loop("read".into()));
    assert_eq!(turn.round(), 5);
}

#[test]
fn a_loop_of_bad_calls_ends_too() {
    let mut turn = Turn::new(setup());
    for n in 1..=5 {
        round(&mut turn, call(&format!("c{n}"), "read", "oops"), "");
    }
    assert_eq!(reason(ends(&mut turn)), FailReason::Loop("read".into()));
}

#[test]
fn final_answer_ends_the_turn() {
    for arguments in [r#"{"answer":"42"}"#, r#""42""#, "42 ", r#"{"value":"42"}"#] {
        // A bare number is JSON but no text.
        let expected = if arguments == "42 " { None } else { Some(answer("42")) };
        let mut turn = Turn::new(setup());
        answers(&mut turn, calls(&[call("c", "final_answer", arguments)]));
        match expected {
            Some(expected) => {
                assert_eq!(ends(&mut turn), expected, "{arguments}");
                assert_eq!(turn.transcript(), [user("hi"), assistant("42".into(), vec![], None)]);
            }
            None => drop(asks(&mut turn)),
        }
    }
}

#[test]
fn calls_beside_final_answer_run_first_and_must_succeed() {
    for (outcome, good) in [(Ok("saved".to_owned()), true), (Err("disk full".to_owned()), false)] {
        let mut turn = Turn::new(setup());
        answers(&mut turn, calls(&[call("f", "final_answer", r#"{"text":"I saved it."}"#), call("w", "write", "{}")]));
        assert_eq!(runs(&mut turn).len(), 1);
        turn.tool_finished("w", outcome);
        if good {
            assert_eq!(ends(&mut turn), answer("I saved it."));
            let transcript = turn.transcript();
            assert_eq!(transcript.len(), 4);
            assert_eq!(transcript[1], assistant(String::new(), vec![call("w", "write", "{}")], None));
            assert!(turn.notes().is_empty());
        } else {
            assert_eq!(last_text(&asks(&mut turn)), "disk full");
        }
    }
}

#[test]
fn a_skill_called_as_a_tool_is_read() {
    let mut turn = Turn::new(setup());
    answers(&mut turn, calls(&[call("c", "weather", r#"{"city":"Paris"}"#)]));
    let planned = runs(&mut turn);
    assert_eq!((planned[0].name.as_str(), &planned[0].args), ("read", &json!({"path": "skills/weather/SKILL.md"})));
    turn.tool_finished("c", Ok("how to".into()));
    assert_eq!(
        asks(&mut turn).messages[1],
        assistant(String::new(), vec![call("c", "read", r#"{"path":"skills/weather/SKILL.md"}"#)], None)
    );
}

#[test]
fn a_cut_answer_goes_on_once() {
    let cut = |text: &str| ModelResponse { finish: Finish::Length, ..says(text) };
    let mut turn = Turn::new(setup());
    answers(&mut turn, cut("The sea is "));
    let request = asks(&mut turn);
    assert_eq!(last_text(&request), CONTINUE);
    turn.model_answered(says("blue."));
    assert_eq!(ends(&mut turn), answer("The sea is blue."));
    assert_eq!(turn.transcript(), [user("hi"), assistant("The sea is blue.".into(), vec![], None)]);

    let mut turn = Turn::new(setup());
    answers(&mut turn, cut("The sea is "));
    answers(&mut turn, cut("blue and "));
    assert_eq!(ends(&mut turn), Ending::Answer { text: "The sea is blue and ".into(), cut: true, filtered: false });

    let mut turn = Turn::new(setup());
    answers(&mut turn, cut("I look: "));
    round(&mut turn, call("c", "read", "{}"), "x");
    answers(&mut turn, says("done"));
    ends(&mut turn);
    assert_eq!(turn.transcript()[1], assistant("I look: ".into(), vec![call("c", "read", "{}")], None));

    let mut turn = Turn::new(setup());
    answers(&mut turn, cut("half"));
    asks(&mut turn);
    turn.model_failed(ModelError::Retry("502".into()));
    assert_eq!(
        ends(&mut turn),
        Ending::Failed { reason: FailReason::Unavailable("502".into()), text: Some("half".into()) }
    );
}

#[test]
fn a_filtered_exchange_is_told_and_left_out() {
    let mut turn = Turn::new(setup());
    answers(&mut turn, ModelResponse { finish: Finish::Filtered, ..says("It goes") });
    let text = format!("It goes\n\n{}", lang::turn_filtered(Lang::En));
    assert_eq!(ends(&mut turn), Ending::Answer { text: text.clone(), cut: false, filtered: true });
    assert!(turn.hidden() && turn.transcript().is_empty() && !turn.can_absorb());
    assert_eq!(turn.exchange(), [user("hi"), assistant(text, vec![], None)]);

    let mut turn = Turn::new(setup());
    asks(&mut turn);
    turn.model_failed(ModelError::Refused("policy".into()));
    assert_eq!(reason(ends(&mut turn)), FailReason::Refused("policy".into()));
    assert!(turn.hidden() && turn.transcript().is_empty());
}

#[test]
fn empty_answers_are_asked_again_once() {
    for empty in ["", " \n", "<think>hm</think>", "<think>hm"] {
        let mut turn = Turn::new(setup());
        answers(&mut turn, says(empty));
        assert_eq!(asks(&mut turn).messages, [user("hi")]);
        turn.model_answered(says(empty));
        assert_eq!(ends(&mut turn), Ending::Failed { reason: FailReason::Empty, text: None });
    }
    let mut turn = Turn::new(setup());
    answers(&mut turn, says("<think>nothing to say: NO_REPLY"));
    assert_eq!(ends(&mut turn), answer("<think>nothing to say: NO_REPLY"), "silence is the reply filter's to see");
}

#[test]
fn a_pseudo_call_is_corrected_once_and_never_kept() {
    let pseudo = r#"<tool_call>{"name":"read","arguments":{"path":"a"}}</tool_call>"#;
    let mut turn = Turn::new(setup());
    round(&mut turn, call("c1", "read", "{}"), "x");
    answers(&mut turn, says(pseudo));
    let request = asks(&mut turn);
    assert!(last_text(&request).contains("make a real tool call"));
    assert!(matches!(request.messages[request.messages.len() - 2], Message::Assistant { .. }), "never behind a result");
    let mut failing = Turn::new(setup());
    answers(&mut failing, says(pseudo));

    turn.model_answered(calls(&[call("c2", "read", r#"{"path":"a"}"#)]));
    assert_eq!(runs(&mut turn).len(), 1);
    turn.tool_finished("c2", Ok("y".into()));
    answers(&mut turn, says("It says y."));
    assert_eq!(ends(&mut turn), answer("It says y."));
    let transcript = serde_json::to_string(&turn.transcript()).unwrap();
    assert!(!transcript.contains("tool_call>") && !transcript.contains("[gateway]"));
    assert_eq!(turn.transcript().len(), 6);

    answers(&mut failing, says(pseudo));
    assert_eq!(ends(&mut failing), Ending::Failed { reason: FailReason::PseudoCall, text: None });
    let told = lang::turn_failed(Lang::En, lang::turn_pseudo_call(Lang::En));
    assert_eq!(failing.transcript(), [user("hi"), assistant(told, vec![], None)]);
}

/// What a person gets of an ending.
fn delivered(ending: &Ending, lang: Lang) -> String {
    match ending {
        Ending::Answer { text, .. } => text.clone(),
        Ending::Failed { reason, .. } => lang::turn_failed(lang, reason.line(lang)),
        Ending::Stopped => String::new(),
    }
}

#[test]
fn every_written_call_is_corrected_once_and_then_made_or_honestly_given_up() {
    for case in pseudo::tests::written_calls() {
        let name = case.name;
        let words = pseudo::visible(&case.text)[..case.at.expect("a mark")].trim().to_owned();
        let kept = if case.keeps { format!("{words}\n\n") } else { String::new() };
        // Behind a result, where nothing may stand but an assistant's message.
        let begin = |lang| {
            let mut turn = Turn::new(Setup { lang, ..setup() });
            round(&mut turn, call("c1", "read", "{}"), "x");
            answers(&mut turn, says(&case.text));
            let request = asks(&mut turn);
            let messages = &request.messages;
            assert!(last_text(&request).starts_with("[gateway]"), "{name}: {}", last_text(&request));
            assert_eq!(last_text(&request).contains("are kept"), case.keeps, "{name}");
            let corrections =
                messages.iter().filter(|m| matches!(m, Message::User { text, .. } if text.contains("[gateway]")));
            assert_eq!(corrections.count(), 1, "{name}");
            assert!(
                matches!(&messages[messages.len() - 2], Message::Assistant { calls, .. } if calls.is_empty()),
                "{name}"
            );
            assert_eq!(turn.took_back(), !case.keeps, "{name}");
            turn
        };
        let mut turn = begin(Lang::En);
        turn.model_answered(calls(&[call("c2", "write", r#"{"path":"a"}"#)]));
        assert_eq!(runs(&mut turn).len(), 1, "{name}");
        turn.tool_finished("c2", Ok("y".into()));
        answers(&mut turn, says("All done."));
        assert_eq!(delivered(&ends(&mut turn), Lang::En), format!("{kept}All done."), "{name}");
        let transcript = serde_json::to_string(&turn.transcript()).unwrap();
        assert!(!transcript.contains("[gateway]") && !transcript.contains("canary"), "{name}: {transcript}");
        assert_eq!(case.keeps, !words.is_empty() && transcript.contains(&words), "{name}: {transcript}");

        for lang in [Lang::En, Lang::Zh] {
            let mut turn = begin(lang);
            turn.model_answered(says(&case.text));
            let line = lang::turn_failed(lang, lang::turn_pseudo_call(lang));
            assert_eq!(delivered(&ends(&mut turn), lang), format!("{kept}{line}"), "{name}");
            assert_eq!(turn.round(), 3, "{name}: one correction");
            let transcript = serde_json::to_string(&turn.transcript()).unwrap();
            assert!(!transcript.contains("[gateway]") && !transcript.contains("canary"), "{name}: {transcript}");
        }
    }
}

#[test]
fn every_look_alike_is_the_answer() {
    for case in pseudo::tests::look_alikes() {
        let asked = if case.asked { "How do I write a tool call?" } else { "hi" };
        let mut turn = Turn::new(Setup { input: vec![user(asked)], ..setup() });
        answers(&mut turn, says(&case.text));
        assert_eq!(ends(&mut turn), answer(&case.text), "{}", case.name);
    }
}

#[test]
fn words_before_a_written_call_are_not_said_twice() {
    let words = "The meeting is on Thursday at nine in the small room, and four people said that they will come to it.";
    let mut turn = Turn::new(setup());
    answers(&mut turn, says(&format!("{words}\n<tool_call>{{\"name\":\"read\",\"arguments\":{{}}}}</tool_call>")));
    answers(&mut turn, says(&format!("{words} That is all.")));
    assert_eq!(ends(&mut turn), answer(&format!("{words} That is all.")));
    assert_eq!(turn.transcript().len(), 2);
    // A model that cannot be reached is no reason to end the turn with half of an answer.
    let mut turn = Turn::new(setup());
    answers(&mut turn, says(&format!("{words}\n<tool_call>{{\"name\":\"read\",\"arguments\":{{}}}}</tool_call>")));
    asks(&mut turn);
    turn.model_failed(ModelError::Retry("502".into()));
    assert_eq!(reason(ends(&mut turn)), FailReason::Unavailable("502".into()));
}

#[test]
fn a_written_call_is_no_final_answer_either() {
    let mut turn = Turn::new(setup());
    let arguments = json!({ "answer": "<tool_call>{\"name\":\"read\",\"arguments\":{}}</tool_call>" }).to_string();
    answers(&mut turn, calls(&[call("f", "final_answer", &arguments)]));
    assert!(last_text(&asks(&mut turn)).starts_with("No text to deliver"));
}

#[test]
fn a_request_that_is_too_long_is_shortened_three_times() {
    let history: Vec<Message> =
        (0..16).flat_map(|n| [user(&format!("q{n}")), assistant(format!("a{n}"), vec![], None)]).collect();
    let mut turn = Turn::new(Setup { history, ..setup() });
    let mut lengths = vec![asks(&mut turn).messages.len()];
    for _ in 0..3 {
        turn.model_failed(ModelError::TooLong("8k".into()));
        lengths.push(asks(&mut turn).messages.len());
    }
    assert_eq!(lengths, [33, 15, 7, 3]);
    assert_eq!(turn.round(), 1, "the same round again");
    turn.model_failed(ModelError::TooLong("8k".into()));
    assert_eq!(reason(ends(&mut turn)), FailReason::TooLong);
}

#[test]
fn without_history_long_results_are_shortened() {
    let mut turn = Turn::new(setup());
    round(&mut turn, call("c", "read", "{}"), &"long line\n".repeat(1_000));
    asks(&mut turn);
    turn.model_failed(ModelError::TooLong("8k".into()));
    assert!(last_text(&asks(&mut turn)).chars().count() <= SHORT_RESULT_CHARS);
    turn.model_failed(ModelError::TooLong("8k".into()));
    assert_eq!(reason(ends(&mut turn)), FailReason::TooLong);
}

#[test]
fn a_refused_order_rebuilds_once() {
    let history = vec![
        user("a"),
        assistant(String::new(), vec![call("x", "read", "{}")], None),
        result("x", "read", "old news"),
        assistant("b".into(), vec![], None),
    ];
    let mut turn = Turn::new(Setup { history, ..setup() });
    asks(&mut turn);
    turn.model_failed(ModelError::Order("role".into()));
    let request = asks(&mut turn);
    assert!(!order::has_tools(&request.messages));
    assert!(format!("{:?}", request.messages).contains("old news"));
    turn.model_failed(ModelError::Order("role".into()));
    assert_eq!(reason(ends(&mut turn)), FailReason::Order("role".into()));

    let mut turn = Turn::new(setup());
    round(&mut turn, call("c", "read", "{}"), "fresh news");
    asks(&mut turn);
    turn.model_failed(ModelError::Order("role".into()));
    let request = asks(&mut turn);
    assert!(!order::has_tools(&request.messages));
    assert!(format!("{:?}", request.messages).contains("fresh news"));
    turn.model_answered(says("done"));
    assert_eq!(ends(&mut turn), answer("done"));
    assert_eq!(
        turn.transcript(),
        [
            user("hi"),
            assistant(String::new(), vec![call("c", "read", "{}")], None),
            result("c", "read", "fresh news"),
            assistant("done".into(), vec![], None)
        ]
    );
}

#[test]
fn errors_end_the_turn_with_a_plain_line() {
    for (error, expected) in [
        (ModelError::Fatal("wrong key".into()), FailReason::Model("wrong key".into())),
        (ModelError::Retry("502".into()), FailReason::Unavailable("502".into())),
        (ModelError::RetryAfter(Duration::from_secs(9)), FailReason::Unavailable("busy, asks to wait 9 s".into())),
    ] {
        let mut turn = Turn::new(setup());
        asks(&mut turn);
        turn.model_failed(error);
        assert_eq!(reason(ends(&mut turn)), expected);
        for lang in [Lang::En, Lang::Zh] {
            assert!(!expected.line(lang).is_empty());
        }
    }
    let mut turn = Turn::new(setup());
    asks(&mut turn);
    turn.model_failed(ModelError::Cancelled);
    assert_eq!(ends(&mut turn), Ending::Stopped);
}

#[test]
fn stopping_in_the_middle_leaves_an_ordered_transcript() {
    let mut turn = Turn::new(setup());
    answers(&mut turn, calls(&[call("c1", "read", "{}"), call("c2", "send", "{}")]));
    assert_eq!(order::check(&[turn.transcript(), vec![]].concat()), Ok(()), "valid at any time");
    runs(&mut turn);
    turn.tool_finished("c1", Ok("x".into()));
    turn.stop();
    assert_eq!(ends(&mut turn), Ending::Stopped);
    assert_eq!(
        turn.transcript()[2..],
        [result("c1", "read", "x"), result("c2", "send", STOPPED_DURING), assistant("Stopped.".into(), vec![], None)]
    );
    turn.tool_finished("c2", Ok("late".into()));
    assert!(!format!("{:?}", turn.transcript()).contains("late"));
}

#[test]
fn steering_skips_calls_not_begun_and_is_answered() {
    // Before the calls are handed out.
    let mut turn = Turn::new(setup());
    answers(&mut turn, calls(&[call("c1", "send", "{}")]));
    assert!(turn.absorb(vec![user("wait, no")]));
    let request = asks(&mut turn);
    assert_eq!(request.messages[2], result("c1", "send", SKIPPED));
    assert_eq!(last_text(&request), "wait, no");
    assert_eq!(turn.take_skipped().iter().map(|plan| plan.call_id.as_str()).collect::<Vec<_>>(), ["c1"]);
    assert_eq!(turn.take_skipped(), []);
    // A restart does not make it either.
    let rows = [
        step(0, StepKind::Llm, None, "m", None, StepState::Finished, journal_of(&calls(&[call("c1", "send", "{}")]))),
        step(1, StepKind::Tool, Some("c1"), "send", Some(Effect::Effect), StepState::Failed, json!(SKIPPED)),
    ];
    let mut turn = Turn::resume(setup(), &rows);
    assert_eq!(asks(&mut turn).messages[2], result("c1", "send", SKIPPED));

    // While they run: after their results.
    let mut turn = Turn::new(setup());
    answers(&mut turn, calls(&[call("c1", "read", "{}")]));
    runs(&mut turn);
    assert!(turn.absorb(vec![user("and b")]));
    turn.tool_finished("c1", Ok("x".into()));
    let request = asks(&mut turn);
    assert_eq!((&request.messages[2], last_text(&request)), (&result("c1", "read", "x"), "and b"));

    // While the model answers: both answers reach the person.
    assert!(turn.absorb(vec![user("and c")]));
    turn.model_answered(says("a and b"));
    assert_eq!(last_text(&asks(&mut turn)), "and c");
    turn.model_answered(says("c"));
    assert_eq!(ends(&mut turn), answer("a and b\n\nc"));
    assert_eq!(turn.transcript().len(), 8);

    // After the answer, while nothing was sent yet.
    assert!(turn.absorb(vec![user("and d")]));
    answers(&mut turn, says("d"));
    assert_eq!(ends(&mut turn), answer("a and b\n\nc\n\nd"));

    // And when that fails, the answer is not lost.
    assert!(turn.absorb(vec![user("and e")]));
    asks(&mut turn);
    turn.model_failed(ModelError::Retry("502".into()));
    let line = lang::turn_failed(Lang::En, lang::turn_unavailable(Lang::En, "502"));
    assert_eq!(ends(&mut turn), answer(&format!("a and b\n\nc\n\nd\n\n{line}")));
    assert_eq!(turn.transcript().last(), Some(&assistant(line, vec![], None)));

    let mut turn = Turn::new(setup());
    asks(&mut turn);
    turn.stop();
    assert!(!turn.can_absorb() && !turn.absorb(vec![user("too late")]));
}

#[test]
fn silence_beside_words_is_left_out() {
    for (first, second, expected) in
        [("NO_REPLY", "b", "b"), ("a", "NO_REPLY", "a"), ("NO_REPLY", "NO_REPLY", "NO_REPLY")]
    {
        let mut turn = Turn::new(setup());
        answers(&mut turn, says(first));
        assert!(turn.absorb(vec![user("more")]));
        answers(&mut turn, says(second));
        assert_eq!(ends(&mut turn), answer(expected));
    }
}

#[test]
fn a_call_that_also_stands_in_the_text_is_not_kept_there() {
    let mut turn = Turn::new(setup());
    let made = calls(&[call("c1", "read", "{}")]);
    answers(
        &mut turn,
        ModelResponse { text: r#"<tool_call>{"name":"read","arguments":{}}</tool_call>"#.into(), ..made },
    );
    runs(&mut turn);
    assert_eq!(turn.transcript()[1], assistant(String::new(), vec![call("c1", "read", "{}")], None));
}

#[test]
fn the_last_round_absorbs_nothing() {
    let mut turn = Turn::new(Setup { limits: Limits { max_rounds: 1, ..Limits::default() }, ..setup() });
    asks(&mut turn);
    assert!(!turn.absorb(vec![user("more")]));
    turn.model_answered(says("done"));
    assert!(!turn.can_absorb());
}

#[test]
fn results_are_bounded_and_never_empty() {
    let mut turn = Turn::new(Setup { limits: Limits { output_chars: 500, ..Limits::default() }, ..setup() });
    answers(&mut turn, calls(&[call("c1", "read", "{}"), call("c2", "read", "{\"a\":1}")]));
    runs(&mut turn);
    turn.tool_finished("c1", Ok("读".repeat(5_000)));
    turn.tool_finished("c2", Ok(" \n".into()));
    let request = asks(&mut turn);
    assert!(
        matches!(&request.messages[2], Message::Tool { text, .. } if text.chars().count() <= 500 && text.contains("5000"))
    );
    assert_eq!(last_text(&request), NO_OUTPUT);
}

#[test]
fn a_claim_without_a_step_is_noted() {
    let mut turn = Turn::new(setup());
    answers(&mut turn, says("文件已保存。"));
    ends(&mut turn);
    assert_eq!(turn.notes(), ["the answer claims an effect no step of the turn had: “已保存”"]);

    let mut turn = Turn::new(setup());
    round(&mut turn, call("c", "write", "{}"), "ok");
    answers(&mut turn, says("文件已保存。"));
    ends(&mut turn);
    assert!(turn.notes().is_empty());

    // It failed, alone and after one that went well, and says that all is well.
    for (writes, note) in [
        (&["no"][..], Some("the answer claims an effect no step of the turn had: “I have saved”")),
        (&["ok", "no"], Some("the answer claims an effect, but the last write failed: “I have saved”")),
        (&["no", "ok"], None),
    ] {
        let mut turn = Turn::new(setup());
        for (n, outcome) in writes.iter().enumerate() {
            answers(&mut turn, calls(&[call(&format!("c{n}"), "write", &format!(r#"{{"n":{n}}}"#))]));
            let id = runs(&mut turn)[0].call_id.clone();
            turn.tool_finished(&id, if *outcome == "ok" { Ok("written".into()) } else { Err("disk full".into()) });
        }
        answers(&mut turn, says("I have saved both files."));
        ends(&mut turn);
        assert_eq!(turn.notes().first().map(String::as_str), note, "{writes:?}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The journal.

fn step(
    n: u32,
    kind: StepKind,
    call_id: Option<&str>,
    name: &str,
    effect: Option<Effect>,
    state: StepState,
    result: Value,
) -> StepRecord {
    StepRecord {
        id: channel_api::StepId::generate(),
        n,
        round: 1,
        attempt: 1,
        kind,
        call_id: call_id.map(str::to_owned),
        name: name.into(),
        effect,
        state,
        args: Value::Null,
        result,
        started_at: 0,
        ms: 0,
        usage: Usage::default(),
        spent: None,
    }
}

#[test]
fn a_response_survives_its_journal_row() {
    let response = ModelResponse {
        text: "t".into(),
        calls: vec![call("c", "read", "{}")],
        finish: Finish::Length,
        opaque: Some(json!([1])),
        usage: Usage { input: 1, output: 2, cached: 3, cache_write: 0, estimated: true },
        model: "m".into(),
        answered_by: String::new(),
        request_id: Some("r".into()),
    };
    assert_eq!(response_of(&journal_of(&response)), Some(response));
    assert_eq!(
        response_of(&json!({"text": "t", "calls": [7, {"id": "c"}], "usage": "many", "finish": "odd"})),
        Some(says("t"))
    );
    assert_eq!(response_of(&json!("t")), None);
}

#[test]
fn an_interrupted_effect_is_not_repeated_and_others_wait_for_a_read() {
    let first = calls(&[call("c1", "send", "{}"), call("c2", "send", r#"{"n":2}"#), call("c3", "read", "{}")]);
    let steps = [
        step(0, StepKind::Llm, None, "m", None, StepState::Finished, journal_of(&first)),
        step(1, StepKind::Tool, Some("c1"), "send", Some(Effect::Effect), StepState::Started, Value::Null),
        step(2, StepKind::Tool, Some("c3"), "read", Some(Effect::Read), StepState::Started, Value::Null),
    ];
    let mut turn = Turn::resume(setup(), &steps);
    assert_eq!(turn.interrupted(), ["c1"]);
    assert_eq!(runs(&mut turn).iter().map(|plan| plan.call_id.as_str()).collect::<Vec<_>>(), ["c3"]);
    turn.tool_finished("c3", Ok("x".into()));
    let request = asks(&mut turn);
    assert_eq!(
        request.messages[2..],
        [result("c1", "send", &interrupted_result()), result("c2", "send", UNVERIFIED), result("c3", "read", "x")]
    );
    // Refused until the model has looked.
    turn.model_answered(calls(&[call("c4", "send", r#"{"n":2}"#)]));
    assert_eq!(last_text(&asks(&mut turn)), UNVERIFIED);
    turn.model_answered(calls(&[call("c5", "read", r#"{"path":"log"}"#)]));
    assert_eq!(runs(&mut turn).len(), 1);
    turn.tool_finished("c5", Ok("not sent".into()));
    answers(&mut turn, calls(&[call("c6", "send", r#"{"n":2}"#)]));
    assert_eq!(runs(&mut turn)[0].call_id, "c6");
}

#[test]
fn a_started_effect_without_its_model_step_makes_effects_wait() {
    let steps = [step(1, StepKind::Tool, Some("c1"), "send", Some(Effect::Effect), StepState::Started, Value::Null)];
    let mut turn = Turn::resume(setup(), &steps);
    answers(&mut turn, calls(&[call("c2", "send", "{}")]));
    assert_eq!(last_text(&asks(&mut turn)), UNVERIFIED);
}

#[test]
fn shortening_is_replayed() {
    let history: Vec<Message> =
        (0..8).flat_map(|n| [user(&format!("q{n}")), assistant(format!("a{n}"), vec![], None)]).collect();
    let steps = [step(
        0,
        StepKind::Llm,
        None,
        "m",
        None,
        StepState::Failed,
        journal_of_error(&ModelError::TooLong("x".into())),
    )];
    let mut turn = Turn::resume(Setup { history, ..setup() }, &steps);
    assert_eq!(asks(&mut turn).messages.len(), 9);
    assert_eq!(turn.round(), 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Properties.

fn any_response() -> impl Strategy<Value = ModelResponse> {
    let id = prop_oneof![Just(""), Just("c1"), Just("c2"), Just("x")];
    let name = prop_oneof![
        6 => Just("read"), 2 => Just("read_file"), 2 => Just("write"), 3 => Just("send"), 1 => Just("fly"),
        1 => Just("final_answer"), 1 => Just("weather")
    ];
    let arguments = prop_oneof![
        6 => (0..4).prop_map(|n| format!("{{\"n\":{n}}}")),
        1 => Just("{\"n\":1,}".to_owned()),
        1 => Just("{\"answer\":\"so\"}".to_owned()),
        1 => Just("broken".to_owned()),
        1 => Just(String::new()),
    ];
    let made = (id, name, arguments).prop_map(|(id, name, arguments)| call(id, name, &arguments));
    let text = prop_oneof![
        3 => Just(""), 2 => Just("words"), 1 => Just("<tool_call>{\"name\":\"read\",\"arguments\":{}}</tool_call>")
    ];
    let finish = prop_oneof![12 => Just(Finish::Stop), 2 => Just(Finish::Length), 1 => Just(Finish::Cut), 1 => Just(Finish::Filtered)];
    (text, prop_oneof![1 => prop::collection::vec(made.clone(), 0..1), 3 => prop::collection::vec(made, 1..5)], finish)
        .prop_map(|(text, calls, finish)| ModelResponse { text: text.into(), calls, finish, ..Default::default() })
}

/// What a script does at one model call.
#[derive(Clone, Debug)]
enum Play {
    Response(ModelResponse),
    TooLong,
    Order,
}

fn any_play() -> impl Strategy<Value = Play> {
    prop_oneof![
        12 => any_response().prop_map(Play::Response),
        1 => Just(Play::TooLong),
        1 => Just(Play::Order),
    ]
}

/// A driver with a journal: runs a turn by a script, and stops at a given number of journal rows, as a killed process does.
struct Driver<'a> {
    script: &'a [Play],
    steps: Vec<StepRecord>,
    die_at: usize,
    asked: usize,
    answered: usize,
    /// How often each call with an effect began.
    effects: HashMap<String, usize>,
}

impl<'a> Driver<'a> {
    fn new(script: &'a [Play], steps: Vec<StepRecord>, die_at: usize) -> Self {
        let asked = steps.iter().filter(|step| step.kind == StepKind::Llm).count();
        Self { script, steps, die_at, asked, answered: 0, effects: HashMap::new() }
    }

    fn record(&mut self, step: StepRecord) -> bool {
        self.steps.push(step);
        self.steps.len() >= self.die_at
    }

    /// The ending, or `None` when the process died.
    fn drive(&mut self, turn: &mut Turn) -> Option<Ending> {
        loop {
            if self.steps.len() >= self.die_at {
                return None;
            }
            let n = self.steps.len() as u32;
            match turn.next() {
                Step::CallModel(request) => {
                    assert_eq!(order::check(&request.messages), Ok(()), "{:#?}", request.messages);
                    let play = self.script.get(self.asked).cloned().unwrap_or(Play::Response(says("the end")));
                    self.asked += 1;
                    let (state, row) = match &play {
                        Play::Response(response) => (StepState::Finished, journal_of(response)),
                        Play::TooLong => (StepState::Failed, journal_of_error(&ModelError::TooLong("x".into()))),
                        Play::Order => (StepState::Failed, journal_of_error(&ModelError::Order("x".into()))),
                    };
                    let dead = self.record(step(n, StepKind::Llm, None, "m", None, state, row));
                    match play {
                        Play::Response(response) => {
                            self.answered += 1;
                            turn.model_answered(response);
                        }
                        Play::TooLong => turn.model_failed(ModelError::TooLong("x".into())),
                        Play::Order => turn.model_failed(ModelError::Order("x".into())),
                    }
                    if dead {
                        return None;
                    }
                }
                Step::RunTools(planned) => {
                    assert!(!planned.is_empty(), "everything handed out was finished");
                    for plan in planned {
                        let n = self.steps.len() as u32;
                        let row = |n, state, result| {
                            step(n, StepKind::Tool, Some(&plan.call_id), &plan.name, Some(plan.effect), state, result)
                        };
                        if self.record(row(n, StepState::Started, Value::Null)) {
                            if plan.effect == Effect::Effect {
                                *self.effects.entry(plan.call_id.clone()).or_default() += 1;
                            }
                            return None;
                        }
                        if plan.effect == Effect::Effect {
                            *self.effects.entry(plan.call_id.clone()).or_default() += 1;
                        }
                        let text = format!("{} {}", plan.name, plan.args);
                        let dead = self.record(row(n, StepState::Finished, json!(text)));
                        turn.tool_finished(&plan.call_id, Ok(text));
                        if dead {
                            return None;
                        }
                    }
                }
                Step::Finish(ending) => return Some(ending),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn requests_are_ordered_and_rounds_bounded(
        script in prop::collection::vec(any_play(), 0..14),
        history in prop::collection::vec(order::tests::any_message(), 0..10),
        max_rounds in 0_u32..6,
    ) {
        let setup = Setup { history, limits: Limits { max_rounds, ..Limits::default() }, ..setup() };
        let mut turn = Turn::new(setup);
        let mut driver = Driver::new(&script, Vec::new(), usize::MAX);
        let ending = driver.drive(&mut turn);
        prop_assert!(ending.is_some());
        prop_assert!(driver.answered <= max_rounds.max(1) as usize);
        prop_assert!(driver.asked <= max_rounds.max(1) as usize + MOST_SHORTENINGS as usize + 1);
        let mut kept = turn.exchange();
        let closed = matches!(kept.last(), Some(Message::Assistant { calls, .. }) if calls.is_empty());
        prop_assert!(closed, "it ends with the last word");
        kept.push(user("next"));
        prop_assert_eq!(order::check(&kept), Ok(()));
        prop_assert_eq!(turn.hidden(), turn.transcript().is_empty());
    }

    /// Killed after any journal row, a turn goes on as if nothing had happened, unless a call with an effect was open.
    #[test]
    fn a_resumed_turn_goes_on_where_it_was(
        script in prop::collection::vec(any_play(), 1..8),
        history in prop::collection::vec(order::tests::any_message(), 0..6),
    ) {
        let setup = Setup { history, limits: Limits { max_rounds: 6, ..Limits::default() }, ..setup() };
        let mut whole = Turn::new(setup.clone());
        let mut driver = Driver::new(&script, Vec::new(), usize::MAX);
        let expected = driver.drive(&mut whole);
        let rows = driver.steps.len();
        for die_at in 0..=rows {
            let steps = driver.steps[..die_at].to_vec();
            let open_effect = steps.last().is_some_and(|step| step.state == StepState::Started && step.effect == Some(Effect::Effect));
            let mut resumed = Turn::resume(setup.clone(), &steps);
            let mut after = Driver::new(&script, steps.clone(), usize::MAX);
            let ending = after.drive(&mut resumed);
            for id in after.effects.keys() {
                let before = steps.iter().any(|step| step.call_id.as_deref() == Some(id));
                prop_assert!(!before, "an effect that was started began again: {}", id);
            }
            if !open_effect {
                prop_assert_eq!(&ending, &expected, "after {} rows", die_at);
                prop_assert_eq!(resumed.transcript(), whole.transcript());
            }
        }
    }

    /// Killed twice, at any rows: no call with an effect begins twice.
    #[test]
    fn no_effect_begins_twice_over_two_deaths(
        script in prop::collection::vec(any_play(), 1..8),
        first in 1_usize..20,
        second in 1_usize..20,
    ) {
        let mut began: HashMap<String, usize> = HashMap::new();
        let mut steps = Vec::new();
        for die_at in [first, first + second, usize::MAX] {
            let mut turn = Turn::resume(setup(), &steps);
            let mut driver = Driver::new(&script, steps, die_at);
            driver.drive(&mut turn);
            for (id, times) in driver.effects {
                *began.entry(id).or_default() += times;
            }
            steps = driver.steps;
        }
        prop_assert!(began.values().all(|&times| times == 1), "{:?}", began);
    }
}
