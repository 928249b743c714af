use proptest::prelude::*;
use serde_json::json;

use super::*;

fn reader<'a>(channel: &'a ChannelId, places: &'a Places) -> Reader<'a> {
    Reader { channel, me: "42", places }
}

#[test]
fn marks_become_words_a_person_reads() {
    let (channel, places) = (ChannelId::new("discord", "main"), Places::default());
    places.add(&json!({"id": "10", "type": 0, "name": "general"}));
    let data = json!({"mentions": [{"id": "7", "username": "bob", "global_name": "Bob"}, {"id": "42"}]});
    let read = |text: &str| reader(&channel, &places).readable(text, &data);
    assert_eq!(read("<@42> hi <@!7> and <@8> in <#10> or <#11> <:crab:5> <a:dance:6>"), {
        "hi @Bob and @8 in #general or #11 :crab: :dance:"
    });
    for same in ["a < b > c", "<@>", "<@x>", "<", "1 << 2", "<https://example.org>", "<:x:y>", "`Vec<u8>`"] {
        assert_eq!(read(same), same);
    }
}

#[test]
fn a_nearly_full_message_waits_for_the_next_piece() {
    let (channel, places) = (ChannelId::new("discord", "main"), Places::default());
    let message = |text: &str| json!({"id": "1", "channel_id": "5", "author": {"id": "7"}, "content": text});
    let more = |text: &str| reader(&channel, &places).message(&message(text)).expect("said").inbound.more_expected;
    assert_eq!(more("short"), None);
    assert_eq!(more(&"x".repeat(1_950)), Some(NEXT_PIECE));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[0-9]{1,21}|<@[0-9]{0,3}>?|龙|\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        let key = prop_oneof![
            Just("id"),
            Just("channel_id"),
            Just("guild_id"),
            Just("author"),
            Just("content"),
            Just("mentions"),
            Just("type"),
            Just("attachments"),
            Just("message_reference"),
            Just("referenced_message"),
            Just("member"),
            Just("data"),
            Just("custom_id"),
            Just("name"),
            Just("options"),
            Just("value"),
            Just("user"),
            Just("poll"),
            Just("message_snapshots"),
            Just("message"),
            Just("edited_timestamp"),
            Just("url"),
            Just("token"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..10).prop_map(|pairs| {
                Value::Object(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_that_comes_panics(data in any_json()) {
        let (channel, places) = (ChannelId::new("discord", "main"), Places::default());
        places.learn("GUILD_CREATE", &data, Some("42"));
        let reader = reader(&channel, &places);
        let _ = reader.message(&data);
        let _ = reader.edit(&data);
        let _ = reader.deleted("1", &data, None);
        let _ = reader.interaction(&data, true, 0);
        let _ = crate::interaction::ack(&data);
    }

    #[test]
    fn any_text_is_read(text in "(<|>|@|#|:|!|&|[0-9]|a|龙| ){0,40}") {
        let (channel, places) = (ChannelId::new("discord", "main"), Places::default());
        reader(&channel, &places).readable(&text, &json!({}));
    }
}
