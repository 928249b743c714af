//! The frames of the long connection: protobuf messages in binary WebSocket messages, parts of one event joined by its
//! message id. protocols.md §2.4. Performs no IO.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use prost::Message;

/// A frame about the connection itself: ping, pong.
pub const CONTROL: i32 = 0;
/// A frame with an event.
pub const DATA: i32 = 1;

/// The most events that wait for their other parts.
const MOST_OPEN: usize = 64;
/// The most parts of one event.
const MOST_PARTS: usize = 64;
/// The most bytes of all parts that wait.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// How long an event waits for its other parts.
const PATIENCE: Duration = Duration::from_secs(15);

/// One frame.
#[derive(Clone, PartialEq, Message)]
pub struct Frame {
    /// The sender's number of it.
    #[prost(uint64, required, tag = "1")]
    pub seq_id: u64,
    /// For the platform's logs.
    #[prost(uint64, required, tag = "2")]
    pub log_id: u64,
    /// Which service: the `service_id` of the connection's address.
    #[prost(int32, required, tag = "3")]
    pub service: i32,
    /// [`CONTROL`] or [`DATA`].
    #[prost(int32, required, tag = "4")]
    pub method: i32,
    /// What it is about.
    #[prost(message, repeated, tag = "5")]
    pub headers: Vec<Header>,
    /// Unused.
    #[prost(string, optional, tag = "6")]
    pub payload_encoding: Option<String>,
    /// Unused.
    #[prost(string, optional, tag = "7")]
    pub payload_type: Option<String>,
    /// JSON.
    #[prost(bytes = "vec", optional, tag = "8")]
    pub payload: Option<Vec<u8>>,
    /// For the platform's logs.
    #[prost(string, optional, tag = "9")]
    pub log_id_new: Option<String>,
}

/// A name and its value.
#[derive(Clone, PartialEq, Message)]
pub struct Header {
    /// The name.
    #[prost(string, required, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, required, tag = "2")]
    pub value: String,
}

impl Frame {
    /// Reads one; `None` when the bytes are none.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Self::decode(bytes).ok()
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// A sign of life for this service.
    pub fn ping(service: i32) -> Self {
        let kind = Header { key: "type".to_owned(), value: "ping".to_owned() };
        Self { service, method: CONTROL, headers: vec![kind], ..Self::default() }
    }

    /// The value of a header.
    pub fn header(&self, key: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.key == key).map(|header| header.value.as_str())
    }

    /// The answer to an event: the same frame with how long it took and whether it is safe now. Anything but 200 has it
    /// delivered again. `data` is what a card's callback shows, as JSON.
    pub fn answer(mut self, code: u16, took: Duration, data: Option<&serde_json::Value>) -> Self {
        use base64::Engine as _;
        let data = data.map(|data| base64::engine::general_purpose::STANDARD.encode(data.to_string()));
        self.headers.push(Header { key: "biz_rt".to_owned(), value: took.as_millis().to_string() });
        let data = data.map_or(serde_json::Value::Null, serde_json::Value::String);
        let data = data.to_string();
        self.payload = Some(format!("{{\"code\":{code},\"headers\":null,\"data\":{data}}}").into_bytes());
        self
    }
}

/// Events of which not all parts have come.
#[derive(Debug, Default)]
pub struct Parts {
    open: HashMap<String, Open>,
    /// The ids in the order they came.
    order: VecDeque<String>,
    bytes: usize,
}

#[derive(Debug)]
struct Open {
    parts: Vec<Option<Vec<u8>>>,
    since: Duration,
}

impl Parts {
    /// Takes a frame's payload at `now`; the whole event once its last part has come. What is no sensible part is dropped:
    /// its event is delivered again, since nobody answers it.
    pub fn take(&mut self, frame: &Frame, now: Duration) -> Option<Vec<u8>> {
        let payload = frame.payload.clone().unwrap_or_default();
        let number = |key| frame.header(key).and_then(|text| text.trim().parse::<usize>().ok());
        let sum = number("sum").unwrap_or(1);
        if sum <= 1 {
            return Some(payload);
        }
        self.expire(now);
        let (seq, id) = (number("seq")?, frame.header("message_id").filter(|id| !id.is_empty() && id.len() <= 256)?);
        if sum > MOST_PARTS || seq >= sum {
            return None;
        }
        if self.open.get(id).is_some_and(|open| open.parts.len() != sum) {
            self.forget(id);
        }
        if !self.open.contains_key(id) {
            self.order.push_back(id.to_owned());
            self.open.insert(id.to_owned(), Open { parts: vec![None; sum], since: now });
        }
        let place = self.open.get_mut(id)?.parts.get_mut(seq)?;
        self.bytes += payload.len();
        self.bytes -= place.replace(payload).map_or(0, |old| old.len());
        if self.open.get(id)?.parts.iter().all(Option::is_some) {
            return Some(self.forget(id)?.into_iter().flatten().flatten().collect());
        }
        while (self.open.len() > MOST_OPEN || self.bytes > MOST_BYTES) && !self.order.is_empty() {
            let oldest = self.order.front().cloned()?;
            self.forget(&oldest);
        }
        None
    }

    fn expire(&mut self, now: Duration) {
        while let Some(oldest) = self.order.front().cloned() {
            match self.open.get(&oldest) {
                Some(open) if now.saturating_sub(open.since) <= PATIENCE => return,
                _ => self.forget(&oldest),
            };
        }
    }

    fn forget(&mut self, id: &str) -> Option<Vec<Option<Vec<u8>>>> {
        self.order.retain(|other| other != id);
        let open = self.open.remove(id)?;
        self.bytes -= open.parts.iter().flatten().map(Vec::len).sum::<usize>();
        Some(open.parts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    pub(crate) fn vector(name: &str) -> Vec<u8> {
        let all: Value = serde_json::from_str(include_str!("fixtures/feishu_ws_frames.json")).expect("vectors");
        let frames = all["frames"].as_array().expect("frames");
        let hex = frames.iter().find(|frame| frame["name"] == name).expect("a vector")["hex"].as_str().expect("hex");
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
    }

    #[test]
    fn the_official_frames_are_read_and_written_byte_for_byte() {
        let all: Value = serde_json::from_str(include_str!("fixtures/feishu_ws_frames.json")).expect("vectors");
        for frame in all["frames"].as_array().expect("frames") {
            let name = frame["name"].as_str().expect("a name");
            let bytes = vector(name);
            let read = Frame::read(&bytes).expect(name);
            assert_eq!(read.bytes(), bytes, "{name}");
            if let Some(headers) = frame["headers"].as_array() {
                let read: Vec<Value> =
                    read.headers.iter().map(|header| serde_json::json!([header.key, header.value])).collect();
                assert_eq!(&read, headers, "{name}");
                assert_eq!(frame["payload"].as_str().unwrap_or_default().as_bytes(), read_payload(&bytes), "{name}");
            }
        }
        assert_eq!(Frame::ping(33_554_678).bytes(), vector("ping"));
    }

    fn read_payload(bytes: &[u8]) -> Vec<u8> {
        Frame::read(bytes).and_then(|frame| frame.payload).unwrap_or_default()
    }

    #[test]
    fn the_answer_to_an_event_is_the_same_frame_with_its_time_and_code() {
        let event = Frame::read(&vector("event_single")).expect("a frame");
        let answer = event.answer(200, Duration::from_millis(3), None);
        assert_eq!(answer.bytes(), vector("event_ack"));
        let shown = Frame::default().answer(200, Duration::ZERO, Some(&serde_json::json!({"a": 1})));
        assert_eq!(shown.payload, Some(br#"{"code":200,"headers":null,"data":"eyJhIjoxfQ=="}"#.to_vec()));
    }

    fn part(id: &str, sum: &str, seq: &str, payload: &str) -> Frame {
        let header = |key: &str, value: &str| Header { key: key.to_owned(), value: value.to_owned() };
        let headers = vec![header("message_id", id), header("sum", sum), header("seq", seq)];
        Frame { headers, payload: Some(payload.into()), ..Frame::default() }
    }

    #[test]
    fn parts_are_joined_in_their_order_whatever_order_they_come_in() {
        let mut parts = Parts::default();
        let now = Duration::from_secs(5);
        assert_eq!(parts.take(&part("a", "3", "2", "three"), now), None);
        assert_eq!(parts.take(&part("b", "2", "1", "B"), now), None);
        assert_eq!(parts.take(&part("a", "3", "0", "one "), now), None);
        assert_eq!(parts.take(&part("a", "3", "0", "one "), now), None, "a part that came twice counts once");
        assert_eq!(parts.take(&part("a", "3", "1", "two "), now), Some(b"one two three".to_vec()));
        assert_eq!(parts.take(&part("b", "2", "0", "A"), now), Some(b"AB".to_vec()));
        assert_eq!((parts.open.len(), parts.order.len(), parts.bytes), (0, 0, 0));
        let first = Frame::read(&vector("event_part_0_of_2")).expect("a frame");
        assert_eq!(parts.take(&first, now), None);
    }

    #[test]
    fn parts_without_the_rest_expire_and_never_pile_up() {
        let mut parts = Parts::default();
        let big = "x".repeat(1024 * 1024);
        for n in 0..500 {
            parts.take(&part(&format!("m{n}"), "2", "0", &big), Duration::ZERO);
            assert!(parts.open.len() <= MOST_OPEN && parts.bytes <= MOST_BYTES);
        }
        parts.take(&part("late", "2", "0", "x"), PATIENCE * 2);
        assert_eq!(parts.open.len(), 1, "the others have expired");
        for (sum, seq) in [("65", "0"), ("2", "2"), ("2", "-1"), ("2", ""), ("99999999999999999999999", "0")] {
            let taken = parts.take(&part("odd", sum, seq, "x"), Duration::ZERO);
            assert!(taken.is_none() || sum.len() > 5, "{sum}/{seq}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(frame) = Frame::read(&bytes) {
                Parts::default().take(&frame, Duration::ZERO);
            }
        }
    }
}
