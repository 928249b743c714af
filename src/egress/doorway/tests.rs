//! What goes through a doorway, and what does not. No test reaches beyond this machine.

use super::*;
use crate::{
    clock::SystemClock,
    egress::{
        hosts::By,
        tests::{Answer, Site, Table, page},
    },
};

/// A folder, and doorways in it that resolve names by this table.
fn ways(lookup: Arc<Table>) -> (tempfile::TempDir, Doorways) {
    let top = tempfile::tempdir().expect("a folder");
    let config = EgressConfig::default();
    let ways = Doorways::with_lookup(top.path().join("doors"), &config, Arc::new(SystemClock::new()), lookup);
    (top, ways)
}

fn hosts(list: &[(&str, By)]) -> Vec<Host> {
    list.iter().map(|(written, by)| Host::read(written, *by).expect("a host")).collect()
}

/// Sends these bytes and gives all that comes.
async fn ask(doorway: &Doorway, bytes: &str) -> String {
    let mut stream = UnixStream::connect(doorway.path()).await.expect("it listens");
    stream.write_all(bytes.as_bytes()).await.expect("it takes them");
    let mut all = Vec::new();
    // One that is cut off ends in an error; what came before it counts.
    let _ = stream.read_to_end(&mut all).await;
    String::from_utf8_lossy(&all).into_owned()
}

fn get(url: &str) -> String {
    format!(
        "GET {url} HTTP/1.1\r\nHost: elsewhere.example\r\nProxy-Connection: keep-alive\r\nConnection: keep-alive\r\nX-Kept: yes\r\n\r\n"
    )
}

#[tokio::test]
async fn an_open_host_is_reached_both_ways_and_the_request_is_put_right() {
    let site = Site::start(|path| page("", path.as_bytes())).await;
    let port = site.addr.port();
    let (_top, ways) = ways(Table::of(&[("ha.local", &[&["127.0.0.1"]])]));
    let doorway = ways.open(hosts(&[(&format!("ha.local:{port}"), By::Skill)])).expect("open");
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(doorway.path()), mode(doorway.path().parent().expect("a folder"))), (0o600, 0o700));
    let plain = ask(&doorway, &get(&format!("http://HA.local.:{port}/a?b=c"))).await;
    assert!(plain.starts_with("HTTP/1.1 200 OK") && plain.ends_with("/a?b=c"), "{plain}");
    let head = site.heads.lock().expect("no panic")[0].clone();
    assert!(head.starts_with("GET /a?b=c HTTP/1.1\r\n") && head.contains("X-Kept: yes"), "{head}");
    assert!(head.to_lowercase().contains(&format!("host: ha.local.:{port}\r\n")), "{head}");
    assert!(!head.contains("elsewhere") && !head.contains("Proxy-") && !head.contains("keep-alive"), "{head}");
    assert_eq!(head.matches("Connection: close").count(), 1);
    let mut tunnel = UnixStream::connect(doorway.path()).await.expect("it listens");
    let connect = format!("CONNECT ha.local:{port} HTTP/1.1\r\nHost: x\r\n\r\n");
    tunnel.write_all(connect.as_bytes()).await.expect("sent");
    let mut answer = [0; 39];
    tunnel.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer[..], b"HTTP/1.1 200 Connection established\r\n\r\n");
    tunnel.write_all(b"GET /inside HTTP/1.1\r\n\r\n").await.expect("sent");
    let mut all = String::new();
    tunnel.read_to_string(&mut all).await.expect("text");
    assert!(all.ends_with("/inside"), "{all}");
    assert_eq!((doorway.counted(), doorway.note(), site.hits()), ((2, 0), None, 2));
    let path = doorway.path().to_owned();
    drop(doorway);
    assert!(!path.exists() && UnixStream::connect(&path).await.is_err());
}

#[tokio::test]
async fn what_is_not_open_is_refused_in_a_line_and_no_connection_is_made() {
    let site = Site::start(|_| page("", b"inside")).await;
    let port = site.addr.port();
    let lookup = Table::of(&[
        ("site.example.org", &[&["127.0.0.1"]]),
        ("mixed.example.org", &[&["1.1.1.1", "10.0.0.1"]]),
        ("meta.example.org", &[&["169.254.169.254"]]),
    ]);
    let (_top, ways) = ways(lookup);
    let open = [
        (format!("site.example.org:{port}"), By::Skill),
        ("mixed.example.org".to_owned(), By::Owner),
        ("meta.example.org:80".to_owned(), By::Owner),
        ("*.example.com".to_owned(), By::Owner),
    ];
    let open: Vec<(&str, By)> = open.iter().map(|(host, by)| (host.as_str(), *by)).collect();
    let doorway = ways.open(hosts(&open)).expect("open");
    for (target, says) in [
        (format!("127.0.0.1:{port}"), "is not open to this command"),
        (format!("0x7f.1:{port}"), "127.0.0.1"),
        (format!("[::1]:{port}"), "is not open"),
        (format!("[::ffff:127.0.0.1]:{port}"), "is not open"),
        (format!("localhost:{port}"), "is not open"),
        ("evil.test:443".to_owned(), "hosts = [\"evil.test\"]"),
        ("evil.test:8443".to_owned(), "hosts = [\"evil.test:8443\"]"),
        ("example.com:443".to_owned(), "is not open"),
        ("169.254.169.254:80".to_owned(), "is not open"),
        (format!("site.example.org:{port}"), "private network"),
        ("mixed.example.org:443".to_owned(), "private network"),
        ("meta.example.org:80".to_owned(), "private network"),
    ] {
        let answer = ask(&doorway, &format!("CONNECT {target} HTTP/1.1\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(says), "{target}: {answer}");
        assert_eq!(answer.split_once("\r\n\r\n").expect("a body").1.lines().count(), 1, "{answer}");
        if !target.starts_with("0x") {
            let answer = ask(&doorway, &get(&format!("http://{target}/"))).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{target}: {answer}");
        }
    }
    let answer = ask(&doorway, "CONNECT nowhere.example.com:443 HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("was not found"), "{answer}");
    assert_eq!((site.hits(), doorway.counted().0), (0, 0));
    let note = doorway.note().expect("hosts were refused");
    assert!(note.contains("crawfish skills grant") && note.lines().count() == REMEMBERED, "{note}");
}

#[tokio::test]
async fn what_is_no_request_is_refused_and_a_second_one_does_not_pass() {
    let site = Site::start(|path| page("", path.as_bytes())).await;
    let port = site.addr.port();
    let (_top, ways) = ways(Table::of(&[]));
    let doorway = ways.open(hosts(&[(&site.addr.to_string(), By::Owner)])).expect("open");
    let good = format!("http://127.0.0.1:{port}");
    for wrong in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        format!("GET https://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n"),
        "GET file:///etc/passwd HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET http://a:b@127.0.0.1:{port}/ HTTP/1.1\r\n\r\n"),
        format!("CONNECT 127.0.0.1:{port}/x HTTP/1.1\r\n\r\n"),
        "CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n".to_owned(),
        "CONNECT 127.0.0.1:0 HTTP/1.1\r\n\r\n".to_owned(),
        "CONNECT a@127.0.0.1:1 HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET {good}/ HTTP/2.0\r\n\r\n"),
        format!("GET  {good}/ HTTP/1.1\r\n\r\n"),
        format!("G(T {good}/ HTTP/1.1\r\n\r\n"),
        format!("GET {good}/ HTTP/1.1\r\n folded: x\r\n\r\n"),
        format!("GET {good}/ HTTP/1.1\r\nno colon\r\n\r\n"),
        format!("GET {good}/ HTTP/1.1\r\nX: a\nHost: b\r\n\r\n"),
        format!("GET {good}/ HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(HEAD)),
        "\u{16}\u{3}\u{1}\r\n\r\n".to_owned(),
    ] {
        let answer = ask(&doorway, &wrong).await;
        assert!(answer.starts_with("HTTP/1.1 400 ") || answer.is_empty(), "{wrong}: {answer}");
    }
    assert_eq!(site.hits(), 0);
    // The site answers the first and closes; what came behind it was its body.
    let twice = format!("{}{}", get(&format!("{good}/one")), get("http://evil.test/two"));
    let answer = ask(&doorway, &twice).await;
    assert!(answer.contains("/one") && !answer.contains("two"), "{answer}");
    assert_eq!(site.hits(), 1);
}

#[tokio::test]
async fn a_command_that_loads_too_much_is_cut_off_and_its_end_ends_all() {
    let site = Site::start(|_| Answer::Drip(b"HTTP/1.1 200 OK\r\n\r\n".to_vec())).await;
    let (_top, ways) = ways(Table::of(&[]));
    let doorway = ways.open(hosts(&[(&site.addr.to_string(), By::Owner)])).expect("open");
    let mut slow = UnixStream::connect(doorway.path()).await.expect("it listens");
    slow.write_all(get(&format!("http://{}/", site.addr)).as_bytes()).await.expect("sent");
    let mut first = [0; 20];
    slow.read_exact(&mut first).await.expect("it drips");
    doorway.shared.count.bytes.store(BYTES, Relaxed);
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest).await;
    assert!(doorway.note().is_some_and(|note| note.contains("256 MiB")), "{:?}", doorway.note());
    doorway.shared.count.bytes.store(0, Relaxed);
    let mut other = UnixStream::connect(doorway.path()).await.expect("it listens");
    other.write_all(get(&format!("http://{}/", site.addr)).as_bytes()).await.expect("sent");
    other.read_exact(&mut first).await.expect("it drips");
    drop(doorway);
    let _ = other.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn the_owners_proxy_gets_what_is_public_and_nothing_private() {
    let proxy = Site::start(|_| Answer::Bytes(b"HTTP/1.1 200 OK\r\n\r\nthrough".to_vec())).await;
    let inside = Site::start(|_| page("", b"inside")).await;
    let top = tempfile::tempdir().expect("a folder");
    let config = EgressConfig { proxy: Proxy::Url(format!("http://{}", proxy.addr)), ..EgressConfig::default() };
    let lookup = Table::of(&[("ha.local", &[&["127.0.0.1"]])]);
    let ways = Doorways::with_lookup(top.path().to_owned(), &config, Arc::new(SystemClock::new()), lookup);
    let port = inside.addr.port();
    let open = [("example.org", By::Owner), (&*format!("ha.local:{port}"), By::Skill)];
    let doorway = ways.open(hosts(&open)).expect("open");
    let answer = ask(&doorway, "CONNECT example.org:443 HTTP/1.1\r\n\r\n").await;
    assert!(answer.ends_with("through"), "{answer}");
    assert!(proxy.heads.lock().expect("no panic")[0].starts_with("CONNECT example.org:443 HTTP/1.1"));
    let answer = ask(&doorway, &get(&format!("http://ha.local:{port}/"))).await;
    assert!(answer.ends_with("inside"), "{answer}");
    assert_eq!((proxy.hits(), inside.hits()), (1, 1));
}

#[tokio::test]
async fn a_deep_folder_gets_its_socket_elsewhere() {
    let top = tempfile::tempdir().expect("a folder");
    let folder = top.path().join("d".repeat(120));
    let clock = Arc::new(SystemClock::new());
    let ways = Doorways::with_lookup(folder, &EgressConfig::default(), clock, Table::of(&[]));
    let doorway = ways.open(Vec::new()).expect("open");
    let folder = doorway.path().parent().expect("a folder").to_owned();
    assert!(doorway.path().as_os_str().len() <= LONGEST_PATH);
    assert_eq!(std::fs::metadata(&folder).expect("it is there").permissions().mode() & 0o777, 0o700);
    assert!(ask(&doorway, "CONNECT a.test:443 HTTP/1.1\r\n\r\n").await.contains("403"));
    drop(doorway);
    assert!(!folder.exists());
}

#[tokio::test]
async fn every_spelling_of_an_open_name_is_that_name_and_of_a_closed_one_is_none() {
    let site = Site::start(|_| page("", b"inside")).await;
    let port = site.addr.port();
    let lookup = Table::of(&[
        ("ha.local", &[&["127.0.0.1"]]),
        ("xn--fsqu00a.local", &[&["127.0.0.1"]]),
        ("six.local", &[&["::1"]]),
    ]);
    let (_top, ways) = ways(lookup);
    let open = [
        (format!("ha.local:{port}"), By::Skill),
        (format!("例子.local:{port}"), By::Skill),
        ("[::1]:1".to_owned(), By::Owner),
    ];
    let open: Vec<(&str, By)> = open.iter().map(|(host, by)| (host.as_str(), *by)).collect();
    let doorway = ways.open(hosts(&open)).expect("open");
    for name in ["ha.local", "HA.LOCAL", "ha.local.", "Ha.Local.", "ｈａ.local", "例子.local", "XN--FSQU00A.local."]
    {
        let answer = ask(&doorway, &get(&format!("http://{name}:{port}/"))).await;
        assert!(answer.ends_with("inside"), "{name}: {answer}");
    }
    let hits = site.hits();
    for target in [
        format!("ha.local:{}", port ^ 1),
        format!("ha.local.evil.test:{port}"),
        format!("xha.local:{port}"),
        format!("a.ha.local:{port}"),
        format!("hа.local:{port}"),
        format!("six.local:{port}"),
        format!("[::1]:{port}"),
        format!("[::ffff:7f00:1]:{port}"),
        format!("[0:0:0:0:0:ffff:127.0.0.1]:{port}"),
        format!("[64:ff9b::7f00:1]:{port}"),
        format!("127.1:{port}"),
        format!("017700000001:{port}"),
        format!("ha.local%00.evil.test:{port}"),
        format!("ha.local%2eevil.test:{port}"),
    ] {
        let answer = ask(&doorway, &format!("CONNECT {target} HTTP/1.1\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 40"), "{target}: {answer}");
    }
    assert_eq!(site.hits(), hits, "nobody came");
}

#[tokio::test]
async fn a_redirect_leads_nowhere_that_is_not_open() {
    let inside = Site::start(|_| page("", b"inside")).await;
    let target = format!("http://{}/", inside.addr);
    let location = target.clone();
    let site = Site::start(move |_| {
        Answer::Bytes(format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n").into_bytes())
    })
    .await;
    let (_top, ways) = ways(Table::of(&[]));
    let doorway = ways.open(hosts(&[(&site.addr.to_string(), By::Owner)])).expect("open");
    let answer = ask(&doorway, &get(&format!("http://{}/", site.addr))).await;
    assert!(answer.contains("302 Found") && answer.contains(&target), "the command sees it: {answer}");
    assert!(ask(&doorway, &get(&target)).await.starts_with("HTTP/1.1 403 "));
    assert_eq!((site.hits(), inside.hits()), (1, 0));
}

#[tokio::test]
async fn who_sends_nothing_is_let_go_of_and_others_get_their_turn() {
    let site = Site::start(|_| page("", b"inside")).await;
    let top = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(crate::clock::ManualClock::at(0));
    let ways = Doorways::with_lookup(top.path().to_owned(), &EgressConfig::default(), clock.clone(), Table::of(&[]));
    let doorway = ways.open(hosts(&[(&site.addr.to_string(), By::Owner)])).expect("open");
    let mut idle = Vec::new();
    for _ in 0..AT_ONCE {
        let mut stream = UnixStream::connect(doorway.path()).await.expect("it listens");
        stream.write_all(b"GET http://").await.expect("sent");
        idle.push(stream);
    }
    while doorway.counted().1 < AT_ONCE as u64 {
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    let answer = ask(&doorway, &get(&format!("http://{}/", site.addr))).await;
    assert!(answer.ends_with("inside"), "{answer}");
    for mut stream in idle {
        let mut all = String::new();
        let _ = stream.read_to_string(&mut all).await;
        assert!(all.contains("408"), "{all}");
    }
}

#[tokio::test]
async fn a_thousand_connections_are_all_answered_or_closed() {
    let site = Site::start(|_| page("", b"inside")).await;
    let (_top, ways) = ways(Table::of(&[]));
    let doorway = ways.open(hosts(&[(&site.addr.to_string(), By::Owner)])).expect("open");
    let request = get(&format!("http://{}/", site.addr));
    let mut all = JoinSet::new();
    for _ in 0..1_000 {
        let (path, request) = (doorway.path().to_owned(), request.clone());
        all.spawn(async move {
            // The system's queue of a socket is short: who finds it full comes again.
            let mut stream = loop {
                match UnixStream::connect(&path).await {
                    Ok(stream) => break stream,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            let _ = stream.write_all(request.as_bytes()).await;
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer).await;
            answer.ends_with("inside")
        });
    }
    let answered = all.join_all().await.into_iter().filter(|good| *good).count();
    assert_eq!((answered, doorway.counted()), (1_000, (1_000, 0)));
}

#[tokio::test]
async fn a_server_of_mcp_is_told_its_own_line() {
    let (_top, ways) = ways(Table::of(&[]));
    let doorway = ways.open_for(Vec::new(), Some("notes".to_owned())).expect("open");
    let answer = ask(&doorway, "CONNECT api.example.org:443 HTTP/1.1\r\n\r\n").await;
    assert!(answer.contains("[mcp.servers.notes] hosts = [\"api.example.org\"]"), "{answer}");
}
