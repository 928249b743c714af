//! Who may write: a stranger gets one code and no answer, the owner lets in and shuts out, by the terminal, in chat and by
//! HTTP; and no kill comes between a code and the word of it.

use serde_json::{Value, json};

use crate::support::{
    bridge::{Bridge, Callback, Fault, Receiver},
    gateway::Gateway,
    model_server::{Gate, ModelServer, Say, echo},
    wait::{SOON, until},
};

/// A direct message of a sender, in a conversation of theirs.
fn of(sender: &str, id: &str, text: &str) -> Value {
    json!({
        "v": 1, "id": id, "conversation": { "id": format!("room-{sender}"), "type": "direct" },
        "sender": { "id": sender, "name": format!("Name of {sender}") }, "text": text,
    })
}

/// A message of a sender in the group `g1`.
fn in_group(sender: &str, id: &str, text: &str) -> Value {
    let mut message = of(sender, id, text);
    message["conversation"] = json!({ "id": "g1", "type": "group" });
    message
}

const PAIRING: &str = "dm_policy = \"pairing\"\ngroup_policy = \"allowlist\"";

async fn set_up(more: &str) -> (Gateway, Bridge, ModelServer, Receiver) {
    let (model, receiver) = (ModelServer::echo().await, Receiver::start().await);
    let section = Bridge::section(&format!("{}\n{PAIRING}\n{more}", receiver.lines()));
    let gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    (gateway, bridge, model, receiver)
}

/// The code in a callback's text.
fn code_in(callback: &Callback) -> String {
    let letters = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
    let is_code = |word: &&str| word.len() == 8 && word.chars().all(|c| letters.contains(c));
    let found = callback.text().split_whitespace().find(is_code);
    found.unwrap_or_else(|| panic!("no code: {callback:?}")).to_owned()
}

/// The callbacks of a sender's own conversation that were taken.
fn told(receiver: &Receiver, sender: &str) -> Vec<Callback> {
    let room = format!("room-{sender}");
    receiver
        .callbacks()
        .into_iter()
        .filter(|callback| callback.taken && callback.body["conversation"]["id"] == room.as_str())
        .collect()
}

async fn told_at_least(receiver: &Receiver, sender: &str, count: usize) -> Vec<Callback> {
    let room = format!("room-{sender}");
    let enough = |all: &[Callback]| {
        all.iter().filter(|one| one.taken && one.body["conversation"]["id"] == room.as_str()).count() >= count
    };
    receiver.until(&format!("{count} callbacks to {sender}"), SOON, enough).await;
    told(receiver, sender)
}

async fn listed(gateway: &Gateway) -> Value {
    gateway.cli(&["pairing", "list", "--json"]).await.json()
}

fn codes(list: &Value) -> Vec<String> {
    let rows = list["pairings"].as_array().expect("a list");
    rows.iter().map(|row| row["code"].as_str().expect("a code").to_owned()).collect()
}

#[tokio::test]
async fn a_stranger_gets_one_code_and_after_the_approval_an_answer_until_it_is_taken_back() {
    let (mut gateway, bridge, model, receiver) = set_up("groups.g1 = { require_mention = false }").await;

    // One code, no answer, nothing stored; no second message while it waits.
    bridge.accepted(&of("ann", "a1", "zebra")).await;
    let asked = told_at_least(&receiver, "ann", 1).await;
    let code = code_in(&asked[0]);
    let command = format!("crawfish pairing approve webhook:bridge {code}");
    for part in ["Your Webhook user id: ann", &format!("Pairing code: {code}"), &command] {
        assert!(asked[0].text().contains(part), "{part}: {}", asked[0].text());
    }
    assert_eq!(asked[0].in_reply_to(), "a1");
    assert_eq!(bridge.poll("a1").await.status, 404, "the message is not kept");
    bridge.accepted(&of("ann", "a2", "zebra?")).await;
    bridge.accepted(&of("ann", "a1", "zebra")).await;

    // Chinese is answered in Chinese; the fourth of an account hears nothing.
    bridge.accepted(&of("bob", "b1", "你好")).await;
    assert!(told_at_least(&receiver, "bob", 1).await[0].text().contains("配对码："));
    bridge.accepted(&of("cyd", "c1", "hello")).await;
    told_at_least(&receiver, "cyd", 1).await;
    let fourth = bridge.post(&of("dan", "d1", "hello")).await;
    assert_eq!((fourth.status, fourth.code()), (403, "sender_not_allowed"), "{fourth:?}");
    // In a group nothing of this happens.
    assert_eq!(bridge.post(&in_group("eve", "g-1", "hello")).await.status, 403);
    assert_eq!(bridge.post(&in_group("eve", "g-2", "/pair")).await.status, 403);
    assert_eq!(receiver.callbacks().len(), 3, "{:?}", receiver.callbacks());
    assert_eq!(codes(&listed(&gateway).await).len(), 3);
    assert!(model.asks().is_empty());

    // A wrong code says what there is.
    let wrong = gateway.cli(&["pairing", "approve", "webhook", "AAAA2222"]).await;
    assert_eq!(wrong.code, Some(66), "{wrong:?}");
    assert!(wrong.err.contains("AAAA2222") && wrong.err.contains(&command), "{wrong:?}");
    let wrong = gateway.cli(&["pairing", "approve", "telegram", &code]).await;
    assert_eq!(wrong.code, Some(66), "a code is good on its own channel: {wrong:?}");

    // The first approved is the owner, and both sides hear it, once.
    let done = gateway.cli(&["pairing", "approve", "webhook:bridge", &code.to_lowercase()]).await;
    assert!(done.good().contains("Name of ann (ann)") && done.out.contains("owner"), "{done:?}");
    let again = gateway.cli(&["pairing", "approve", &code]).await;
    assert!(again.good().contains("before"), "{again:?}");
    let asked = told_at_least(&receiver, "ann", 2).await;
    assert!(asked[1].text().contains("You can write to me now") && asked[1].text().contains("my owner"), "{asked:?}");
    let answer = bridge.wait(&of("ann", "a3", "what is for lunch?")).await;
    assert!(answer.text().contains("what is for lunch?"), "{answer:?}");
    assert!(!serde_json::to_string(&model.asks()[0].body).expect("JSON").contains("zebra"), "what came before is gone");
    let who = bridge.wait(&of("ann", "a4", "/whoami")).await;
    assert!(who.text().contains("owner (by pairing)"), "{who:?}");

    // The owner decides in chat; a member may not.
    let list = bridge.wait(&of("ann", "a5", "/pair")).await;
    let bobs = code_in(&told(&receiver, "bob")[0]);
    assert!(list.text().contains(&bobs) && list.text().contains("Name of bob"), "{list:?}");
    let said = bridge.wait(&of("ann", "a6", &format!("/配对 批准 {bobs}"))).await;
    assert!(said.text().contains("member"), "{said:?}");
    assert!(told_at_least(&receiver, "bob", 2).await[1].text().contains("现在可以"));
    assert_eq!(
        bridge.wait(&of("bob", "b2", "/pair")).await.text(),
        "Only the owner may do that: whoever `[access] owners` names."
    );
    assert_eq!(
        bridge.wait(&of("bob", "b3", "/block ann")).await.text(),
        "Only the owner may do that: whoever `[access] owners` names."
    );
    assert!(bridge.wait(&of("bob", "b4", "我是谁？")).await.text().contains("我是谁"));

    // A restart keeps all of it.
    gateway.kill9().await;
    gateway.restart().await;
    assert_eq!(codes(&listed(&gateway).await).len(), 1);
    assert!(bridge.wait(&of("bob", "b5", "still here?")).await.text().contains("still here?"));
    bridge.accepted(&of("cyd", "c2", "and me?")).await;

    // Block ends it, unblocking makes a stranger; revoke makes a stranger, too.
    let said = bridge.wait(&of("ann", "a7", "/block bob")).await;
    assert!(said.text().contains("bob is blocked"), "{said:?}");
    let refused = bridge.post(&of("bob", "b6", "why?")).await;
    assert_eq!((refused.status, refused.code()), (403, "sender_not_allowed"), "{refused:?}");
    let said = bridge.wait(&of("ann", "a8", "/block ann")).await;
    assert!(said.text().contains("yourself"), "{said:?}");
    assert!(bridge.wait(&of("ann", "a9", "/unblock bob")).await.text().contains("no longer blocked"));
    gateway.cli(&["pairing", "revoke", "webhook:bridge", "ann"]).await.good();
    let asks = model.asks().len();
    bridge.accepted(&of("ann", "a10", "me again")).await;
    let words = told_at_least(&receiver, "ann", 3).await;
    assert_ne!(code_in(&words[2]), code, "a new code");
    assert_eq!(model.asks().len(), asks, "and no answer");
    assert_eq!(gateway.cli(&["pairing", "revoke", "webhook:bridge", "ann"]).await.code, Some(66));
    assert_eq!(told(&receiver, "cyd").len(), 1, "all the while one code was enough");
    assert!(told(&receiver, "dan").is_empty() && told(&receiver, "eve").is_empty());
    receiver.assert_all_signed();
}

#[tokio::test]
async fn a_block_stops_what_runs_and_what_waits_and_the_others_go_on() {
    let (gateway, bridge, model, receiver) = set_up("queue = \"followup\"\nowners = [\"own\"]").await;
    let gate = Gate::default();
    let held = gate.clone();
    model.follow(move |ask| {
        let say = echo(ask);
        if ask.said().contains("slow") { Say::After(held.clone(), Box::new(say)) } else { say }
    });
    bridge.accepted(&of("ann", "a1", "hello")).await;
    let code = code_in(&told_at_least(&receiver, "ann", 1).await[0]);
    let done = gateway.cli(&["pairing", "approve", &code, "--role", "trusted"]).await;
    assert!(done.good().contains("trusted"), "an owner is named in the configuration: {done:?}");
    told_at_least(&receiver, "ann", 2).await;

    bridge.accepted(&of("ann", "a2", "slow one")).await;
    model.asked_about("slow one").await;
    bridge.accepted(&of("ann", "a3", "slow two")).await;
    let blocked = gateway.cli(&["access", "block", "webhook:ann", "--json"]).await;
    let expected = json!({ "scope": "webhook", "sender": "ann" });
    assert_eq!((&blocked.json()["blocked"], &blocked.json()["stopped"]), (&expected, &json!(2)), "{blocked:?}");
    for id in ["a2", "a3"] {
        assert_eq!(bridge.ended(id).await.body["silent"], "stopped", "{id}");
    }
    gate.open();
    assert_eq!(bridge.post(&of("ann", "a4", "hello?")).await.status, 403);
    assert!(bridge.wait(&of("own", "o1", "and I?")).await.text().contains("and I?"));
    assert_eq!(told(&receiver, "ann").len(), 2, "a code and a welcome, nothing else");
    let list = gateway.cli(&["access", "list", "--json"]).await.json();
    assert_eq!(list["blocked"][0]["sender"], "ann", "{list}");
    assert!(listed(&gateway).await["approved"].as_array().is_some_and(Vec::is_empty), "blocked is approved no more");

    // An owner of the configuration: not from chat, by the terminal with a warning.
    let said = bridge.wait(&of("own", "o2", "/block webhook:own")).await;
    assert!(said.text().contains("yourself"), "{said:?}");
    let blocked = gateway.cli(&["access", "block", "webhook:bridge:own"]).await;
    assert!(blocked.good().contains("Careful"), "{blocked:?}");
    assert_eq!(bridge.post(&of("own", "o3", "hm")).await.status, 403);
    gateway.cli(&["access", "unblock", "webhook:bridge:own"]).await.good();
    assert!(bridge.wait(&of("own", "o4", "back")).await.text().contains("back"));
    assert_eq!(gateway.cli(&["access", "unblock", "webhook:bridge:own"]).await.code, Some(66));
    for bad in ["ann", "webhook:", "webhook:@ann", "telegrm:1"] {
        assert_eq!(gateway.cli(&["access", "block", bad]).await.code, Some(64), "{bad}");
    }
}

#[tokio::test]
async fn an_owner_shuts_somebody_out_by_answering_them_in_a_group() {
    let more = "owners = [\"own\"]\ngroups.g1 = { allow_from = [\"*\"] }";
    let (gateway, bridge, model, receiver) = set_up(more).await;
    let mut asked = in_group("eve", "g-1", "buy my shoes");
    asked["mentioned"] = true.into();
    assert!(bridge.wait(&asked).await.text().contains("shoes"));
    let mut block = in_group("eve", "g-2", "/block");
    block["mentioned"] = true.into();
    block["reply_to"] = json!({ "id": "g-9", "sender_id": "own" });
    assert!(bridge.wait(&block).await.text().contains("Only the owner"), "strangers shut out nobody");
    // No mention is needed for the owner's word.
    let mut block = in_group("own", "g-3", "/拉黑");
    block["reply_to"] = json!({ "id": "g-1", "sender_id": "eve" });
    let said = bridge.wait(&block).await;
    assert!(said.text().contains("已在 webhook:bridge 上拉黑 eve"), "{said:?}");
    asked["id"] = "g-4".into();
    assert_eq!(bridge.post(&asked).await.status, 403);
    let said = bridge.wait(&in_group("own", "g-5", "/pair")).await;
    assert!(said.text().contains("direct chat"), "{said:?}");
    let said = bridge.wait(&in_group("own", "g-6", "/block @eve")).await;
    assert!(said.text().contains("never a name"), "{said:?}");
    // The same message again does nothing again.
    gateway.cli(&["access", "unblock", "webhook:bridge:eve"]).await.good();
    assert_eq!(bridge.post(&block).await.body["duplicate"], true);
    asked["id"] = "g-7".into();
    assert_eq!(bridge.wait(&asked).await.status, 200, "still unblocked");
    assert_eq!(model.asks().len(), 2);
    assert!(receiver.callbacks().is_empty());
}

#[tokio::test]
async fn no_kill_comes_between_a_code_and_the_word_of_it() {
    let (mut gateway, bridge, model, receiver) = set_up("").await;
    // The first try of the word fails: the code is stored, its word is not said yet.
    receiver.then([Fault::Status(503)]);
    bridge.accepted(&of("ann", "a1", "hello")).await;
    receiver.until("the refused word", SOON, |all| !all.is_empty()).await;
    gateway.kill9().await;
    gateway.restart().await;
    let words = told_at_least(&receiver, "ann", 1).await;
    assert_eq!(codes(&listed(&gateway).await), [code_in(&words[0])]);

    // Killed at once, whatever was reached: a code that is stored is said, and none is said that is not stored.
    for (sender, id) in [("bob", "b1"), ("cyd", "c1")] {
        let body = of(sender, id, "hello");
        let posting = bridge.try_post(&body);
        let killing = async {
            tokio::task::yield_now().await;
            gateway.kill9().await;
        };
        tokio::join!(posting, killing);
        gateway.restart().await;
        // As a platform does that got no answer.
        bridge.accepted(&body).await;
        let words = told_at_least(&receiver, sender, 1).await;
        assert!(codes(&listed(&gateway).await).contains(&code_in(&words[0])), "{words:?}");
    }
    let list = listed(&gateway).await;
    assert_eq!(codes(&list).len(), 3);
    for sender in ["ann", "bob", "cyd"] {
        let ids: std::collections::BTreeSet<String> =
            told(&receiver, sender).into_iter().map(|callback| callback.id).collect();
        assert_eq!(ids.len(), 1, "one word each: {sender}");
    }
    assert!(model.asks().is_empty());
}

#[tokio::test]
async fn without_a_gateway_the_terminal_decides_all_the_same() {
    let (mut gateway, bridge, _model, receiver) = set_up("").await;
    for (sender, id) in [("ann", "a1"), ("bob", "b1")] {
        bridge.accepted(&of(sender, id, "hello")).await;
    }
    let code = code_in(&told_at_least(&receiver, "ann", 1).await[0]);
    let bobs = code_in(&told_at_least(&receiver, "bob", 1).await[0]);
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(doctor.out.contains(&format!("crawfish pairing approve webhook:bridge {code}")), "{doctor:?}");
    gateway.logged("nobody on a chat platform is the owner").await;
    assert_eq!(gateway.terminate().await.0, Some(0));

    let doctor = gateway.cli(&["doctor", "--offline", "--json"]).await.json();
    let door = |name: &str| doctor["doors"].as_array().is_some_and(|all| all.iter().any(|door| door["name"] == name));
    assert!(door("owner") && door("pairing:webhook:bridge:ann"), "{doctor}");
    let list = gateway.cli(&["pairing", "list"]).await;
    assert!(list.good().contains(&code) && list.out.contains("Name of bob (bob)"), "{list:?}");
    let wrong = gateway.cli(&["--lang", "zh", "pairing", "approve", "ZZZZ9999"]).await;
    assert!(wrong.code == Some(66) && wrong.err.contains("已超过一小时") && wrong.err.contains(&code), "{wrong:?}");
    let rejected = gateway.cli(&["pairing", "reject", &bobs]).await;
    assert!(rejected.good().contains("bob"), "{rejected:?}");
    let done = gateway.cli(&["pairing", "approve", "webhook", &code, "--role", "member", "--json"]).await.json();
    assert_eq!((&done["approved"]["role"], &done["first_owner"]), (&json!("member"), &json!(false)), "{done}");
    assert_eq!(gateway.cli(&["pairing", "approve", &code, "--role", "emperor"]).await.code, Some(64));
    assert_eq!(gateway.cli(&["pairing", "approve"]).await.code, Some(64));
    gateway.cli(&["access", "block", "webhook:bridge:zoe"]).await.good();

    // The word is sent once the gateway runs, and everything holds.
    gateway.restart().await;
    assert!(told_at_least(&receiver, "ann", 2).await[1].text().contains("You can write"));
    assert!(bridge.wait(&of("ann", "a2", "thank you")).await.text().contains("thank you"));
    assert_eq!(bridge.post(&of("zoe", "z1", "hello")).await.status, 403);
    assert_eq!(bridge.post(&of("bob", "b2", "hello")).await.status, 403, "rejected: silent for the rest of the hour");
    let url = format!("{}/api/pairings", gateway.url());
    let closed = crate::support::gateway::client().get(&url).send().await.expect("it answers");
    assert_eq!(closed.status().as_u16(), 401);
    until("the doors", SOON, async || {
        let request = crate::support::gateway::client().get(format!("{}/api/doors", gateway.url()));
        let doors: Value = request.bearer_auth(gateway.token()).send().await.ok()?.json().await.ok()?;
        let names: Vec<&str> = doors["doors"].as_array()?.iter().filter_map(|door| door["name"].as_str()).collect();
        (names.contains(&"owner") && !names.iter().any(|name| name.starts_with("pairing:"))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn row_12_five_wrong_codes_shut_the_door_for_a_while() {
    let (gateway, bridge, _model, receiver) = set_up("owners = [\"own\"]").await;
    bridge.accepted(&of("ann", "a1", "hello")).await;
    let code = code_in(&told_at_least(&receiver, "ann", 1).await[0]);
    for n in 0..5 {
        let said = bridge.wait(&of("own", &format!("o{n}"), &format!("/pair approve WRNG222{}", n + 2))).await;
        assert!(said.text().contains("older than an hour") && said.text().contains(&code), "{said:?}");
    }
    let said = bridge.wait(&of("own", "o9", &format!("/pair approve {code}"))).await;
    assert!(said.text().contains("10 minutes"), "{said:?}");
    let locked = gateway.cli(&["pairing", "approve", &code]).await;
    assert!(locked.code == Some(69) && locked.err.contains("10 minutes"), "{locked:?}");
    assert_eq!(codes(&listed(&gateway).await), [code]);
}
