//! Sources of external updates: a queue in memory, and a Unix socket that any bytes may come from.

#[path = "plain/random.rs"]
mod random;

use gradring::codec::canon;
use gradring::exchange::external::{
    DEFAULT_LIMIT, ExternalUpdate, QueueSource, SocketClient, SocketOptions, SocketSource,
    SourceError, UpdateSource, queue,
};
use random::Random;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn values(update: &ExternalUpdate) -> Vec<f32> {
    let mut values = vec![0.0; update.elements()];
    for (element, x) in update.values() {
        values[element] = x;
    }
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Some hits, or now and then a dense vector.
fn some(random: &mut Random, elements: usize) -> ExternalUpdate {
    if random.happens(0.1) {
        let values = (0..elements).map(|_| random.laplace(0.3)).collect();
        return ExternalUpdate::dense(values).expect("finite");
    }
    let density = random.one_of(&[0.001, 0.01, 0.3]);
    let value = random.one_of(&[0.1, 0.37, 2.0]);
    let mut hits = Vec::new();
    for i in 0..elements {
        if random.happens(density) {
            hits.push((i, random.coin()));
        }
    }
    ExternalUpdate::hits(elements, value, hits).expect("ascending")
}

/// What a source that was asked once must have: all in order, from +0.
fn sum_of(updates: &[ExternalUpdate], elements: usize) -> Vec<f32> {
    let mut sum = vec![0.0_f32; elements];
    for update in updates {
        for (element, x) in update.values() {
            sum[element] = canon(sum[element] + x);
        }
    }
    sum
}

#[test]
fn whatever_waits_is_added_up_in_order_whatever_the_limit() {
    let elements = 3000;
    let mut random = Random(1);
    for count in [0, 1, 2, 31, 32, 33, 100] {
        let updates: Vec<ExternalUpdate> =
            (0..count).map(|_| some(&mut random, elements)).collect();
        for limit in [0, 1, 5, DEFAULT_LIMIT, usize::MAX] {
            let (sender, mut source) = queue(elements, limit);
            for update in &updates {
                sender.send(update.clone()).expect("it is right");
            }
            assert_eq!(source.counts().accepted, count as u64);
            if count > limit.max(1) {
                assert!(source.counts().collapsed > 0);
            }
            let update = source.poll().expect("it lives");
            assert_eq!(update.is_some(), count > 0);
            if let Some(update) = update {
                assert_eq!(bits(&values(&update)), bits(&sum_of(&updates, elements)));
            }
            assert!(source.poll().expect("it lives").is_none());
        }
    }
}

#[test]
fn one_update_that_waits_comes_out_as_it_went_in() {
    let (sender, mut source) = queue(50, 3);
    let update = ExternalUpdate::hits(50, 0.5, [(3, true), (49, false)]).expect("right");
    sender.send(update.clone()).expect("it lives");
    assert_eq!(source.poll().expect("it lives"), Some(update));
}

#[test]
fn what_is_given_back_comes_first_again() {
    // Numbers whose sum depends on the order.
    let [a, b, c] = [1.0_f32, 1e8, -1e8].map(|x| ExternalUpdate::dense(vec![x]).expect("finite"));
    let (sender, mut source) = queue(1, 8);
    sender.send(a.clone()).expect("it lives");
    sender.send(b.clone()).expect("it lives");
    let first = source.poll().expect("it lives").expect("two wait");
    sender.send(c.clone()).expect("it lives");
    source.give_back(first);
    let all = source.poll().expect("it lives").expect("three wait");
    assert_eq!(values(&all), sum_of(&[a, b, c], 1));
    assert_eq!(source.counts().accepted, 3);
}

#[test]
fn a_backlog_takes_the_memory_of_two_vectors_however_long_nobody_asks() {
    let elements = 1 << 18;
    // Each has a quarter of a vector's bytes, so that the bytes are what makes a sum of them, not their number.
    let (sender, mut source) = queue(elements, usize::MAX);
    for round in 0..200 {
        let hits = (0..elements / 8).map(|i| (8 * i + round % 8, false));
        sender
            .send(ExternalUpdate::hits(elements, 0.5, hits).expect("ascending"))
            .expect("it lives");
    }
    assert!(source.counts().collapsed > 30, "{:?}", source.counts());
    let sum = source.poll().expect("it lives").expect("many wait");
    assert!(values(&sum).iter().all(|x| *x == 12.5));
}

#[test]
fn many_threads_send_and_nothing_is_lost() {
    let elements = 1000;
    let (sender, mut source) = queue(elements, 4);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for i in 0..500 {
                    let hits = [(i, false), (i + 500, true)];
                    let update = ExternalUpdate::hits(elements, 1.0, hits);
                    sender.send(update.expect("ascending")).expect("it lives");
                }
            })
        })
        .collect();
    let mut sum = vec![0.0; elements];
    let mut take = |source: &mut QueueSource| {
        let update = source.poll().expect("it lives");
        for (element, x) in update.iter().flat_map(ExternalUpdate::values) {
            sum[element] += x;
        }
    };
    while !threads.iter().all(|thread| thread.is_finished()) {
        take(&mut source);
    }
    for thread in threads {
        thread.join().expect("it sends");
    }
    take(&mut source);
    assert!(sum[..500].iter().all(|x| *x == 4.0) && sum[500..].iter().all(|x| *x == -4.0));
    assert_eq!(source.counts().accepted, 2000);
}

#[test]
fn what_a_queue_cannot_take_is_refused_to_its_sender_and_counted() {
    let (sender, mut source) = queue(10, 1);
    let wrong = ExternalUpdate::hits(11, 1.0, []).expect("none");
    assert!(matches!(
        sender.send(wrong),
        Err(SourceError::Length {
            expected: 10,
            found: 11
        })
    ));
    // Two that are finite, whose sum is not: the element keeps what it has.
    for _ in 0..2 {
        let values = [1.0, f32::MAX].into_iter().chain([0.0; 8]).collect();
        let huge = ExternalUpdate::dense(values).expect("finite");
        sender.send(huge).expect("it lives");
    }
    let sum = source.poll().expect("it lives").expect("two wait");
    assert_eq!(values(&sum)[..2], [2.0, f32::MAX]);
    let counts = source.counts();
    assert_eq!(
        (counts.accepted, counts.refused, counts.left_out),
        (2, 1, 1)
    );
    drop(source);
    let late = ExternalUpdate::hits(10, 1.0, []).expect("none");
    assert!(matches!(sender.send(late), Err(SourceError::Closed)));
}

/// A source in a folder of its own.
fn source(elements: usize, options: SocketOptions) -> (tempfile::TempDir, PathBuf, SocketSource) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("updates");
    let source = SocketSource::bind(&path, elements, options).expect("nothing is there");
    (folder, path, source)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A frame as a peer writes it.
fn frame(kind: u8, length: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"grxu\x01".to_vec();
    bytes.extend([kind, 0, 0]);
    bytes.extend(length.to_le_bytes());
    bytes.extend(payload);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// All that the source says until it closes, or until `most` bytes have come.
fn said(stream: &mut UnixStream, most: usize) -> Vec<u8> {
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("more than 0");
    let (mut all, mut room) = (Vec::new(), [0; 4096]);
    while all.len() < most {
        match stream.read(&mut room) {
            Ok(0) => break,
            Ok(read) => all.extend(&room[..read]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error}, after {all:?}"),
        }
    }
    all
}

/// The reason of a refusal.
fn reason(bytes: &[u8]) -> String {
    assert_eq!(
        (&bytes[..5], bytes[5]),
        (&b"grxu\x01"[..], 129),
        "{bytes:?}"
    );
    String::from_utf8_lossy(&bytes[16..bytes.len() - 4]).into_owned()
}

#[test]
fn updates_come_through_a_socket_in_order_and_bit_for_bit() {
    let elements = 300_000;
    let (_folder, path, mut source) = source(elements, SocketOptions::default());
    assert_eq!((source.elements(), source.path()), (elements, &*path));
    let mut client = SocketClient::connect(&path).expect("it listens");
    let mut random = Random(2);
    for round in 0..12 {
        let mut updates: Vec<ExternalUpdate> =
            (0..round).map(|_| some(&mut random, elements)).collect();
        for update in &updates {
            client.send(update).expect("it is right");
        }
        let t = 0.25_f32.to_bits() as i32;
        client
            .send_dl4j(&[3, elements as i32, t, 0, 300_000, -1, 7])
            .expect("it is right");
        let hits = [(0, true), (6, false), (299_999, false)];
        updates.push(ExternalUpdate::hits(elements, 0.25, hits).expect("ascending"));
        let sum = source.poll().expect("it lives").expect("some wait");
        assert_eq!(bits(&values(&sum)), bits(&sum_of(&updates, elements)));
    }
    assert_eq!(source.counts().refused, 0);
}

#[test]
fn several_clients_send_at_the_same_time() {
    let elements = 40_000;
    let (_folder, path, mut source) = source(elements, SocketOptions::default());
    let clients: Vec<_> = (0..8)
        .map(|of| {
            let path = path.clone();
            std::thread::spawn(move || {
                let mut client = SocketClient::connect(&path).expect("it listens");
                for i in 0..50 {
                    let hits = [(50 * of + i, i % 2 == 0), (39_999, false)];
                    let update = ExternalUpdate::hits(elements, 1.0, hits).expect("ascending");
                    client.send(&update).expect("it is right");
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("it sends");
    }
    let sum = values(&source.poll().expect("it lives").expect("400 wait"));
    assert!((0..400).all(|i| sum[i] == if i % 2 == 0 { -1.0 } else { 1.0 }));
    assert_eq!(sum[39_999], 400.0);
    assert_eq!(source.counts().accepted, 400);
}

#[test]
fn a_refused_update_is_told_why_and_the_next_one_is_taken() {
    let (_folder, path, mut source) = source(100, SocketOptions::default());
    let mut client = SocketClient::connect(&path).expect("it listens");
    let refused = |error: SourceError, expected: &str| {
        assert!(
            matches!(&error, SourceError::Refused { reason } if reason.contains(expected)),
            "{error}"
        );
    };
    let short = ExternalUpdate::hits(99, 1.0, [(3, true)]).expect("ascending");
    let error = client.send(&short).expect_err("another length");
    refused(error, "99 elements for a source of 100");
    let t = 1.0_f32.to_bits() as i32;
    for (message, expected) in [
        (&[1, 100, t, 0, 101][..], "word 4 is 101"),
        (&[1, 99, t, 0, 1], "a message of 99 elements"),
        (&[1, 100, 0, 0, 1], "the threshold is 0"),
        (&[1, 100, t, 7, 1], "encoding 7 is unknown"),
        (&[2, 100, f32::MAX.to_bits() as i32, 0, 1, 1], "not finite"),
    ] {
        let error = client.send_dl4j(message).expect_err("it is wrong");
        refused(error, expected);
    }
    let right = ExternalUpdate::hits(100, 1.0, [(3, true)]).expect("ascending");
    client.send(&right).expect("it is right");
    assert_eq!(source.poll().expect("it lives"), Some(right));
    let counts = source.counts();
    assert_eq!((counts.accepted, counts.refused), (1, 6));
}

#[test]
fn bytes_that_are_no_frame_end_the_connection_with_the_reason_and_nothing_else() {
    let (_folder, path, mut source) = source(100, SocketOptions::default());
    let mut good = SocketClient::connect(&path).expect("it listens");
    let mut damaged = frame(3, 400, &[0; 400]);
    damaged[100] ^= 1;
    for (bytes, expected) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "begins with"),
        (frame(3, 401, &[]), "expected at most 400"),
        (frame(1, u64::MAX, &[]), "expected at most"),
        (frame(9, 0, &[]), "kind 9"),
        (frame(128, 0, &[]), "kind 128"),
        (damaged, "checksum"),
    ] {
        let mut stream = UnixStream::connect(&path).expect("it listens");
        stream.write_all(&bytes).expect("it reads");
        let answer = said(&mut stream, usize::MAX);
        assert!(reason(&answer).contains(expected), "{}", reason(&answer));
        let update = ExternalUpdate::hits(100, 1.0, [(5, false)]).expect("ascending");
        good.send(&update).expect("the others go on");
    }
    let sum = source.poll().expect("it lives").expect("six wait");
    assert_eq!(sum.values().collect::<Vec<_>>(), [(5, 6.0)]);
    assert_eq!(source.counts().refused, 6);
}

#[test]
fn garbage_without_end_is_cut_off() {
    let (_folder, path, source) = source(1000, SocketOptions::default());
    let mut random = Random(3);
    for round in 0..50 {
        let mut stream = UnixStream::connect(&path).expect("it listens");
        let mut bytes: Vec<u8> = (0..1 << 16).map(|_| random.next() as u8).collect();
        if round % 2 == 0 {
            // A right head, and a payload that never ends as it should.
            bytes[..16].copy_from_slice(&frame(1, 4000, &[])[..16]);
        }
        let mut written = 0;
        while written < 64 << 20 {
            match stream.write(&bytes) {
                Ok(more) => written += more,
                Err(_) => break,
            }
        }
        // What the sockets hold, no more.
        assert!(written < 4 << 20, "it goes on reading: {written}");
    }
    until("the count", || source.counts().refused == 50);
}

#[test]
fn a_client_that_dies_inside_a_message_costs_nothing() {
    let (_folder, path, mut source) = source(100, SocketOptions::default());
    let whole = frame(3, 400, &[0; 400]);
    for end in 0..whole.len() {
        let mut stream = UnixStream::connect(&path).expect("it listens");
        stream.write_all(&whole[..end]).expect("it reads");
    }
    // Those that had begun are counted; no other has an effect.
    until("the count", || {
        source.counts().refused == whole.len() as u64 - 1
    });
    assert!(source.poll().expect("it lives").is_none());
    let mut client = SocketClient::connect(&path).expect("it listens");
    let update = ExternalUpdate::dense(vec![0.5; 100]).expect("finite");
    client.send(&update).expect("it is right");
    assert_eq!(
        values(&source.poll().expect("it lives").expect("one")),
        [0.5; 100]
    );
}

#[test]
fn a_client_that_says_no_more_is_given_up_and_one_that_waits_is_not() {
    let options = SocketOptions {
        patience: Duration::from_millis(50),
        ..SocketOptions::default()
    };
    let (_folder, path, source) = source(100, options);
    let mut idle = SocketClient::connect(&path).expect("it listens");
    let mut stream = UnixStream::connect(&path).expect("it listens");
    stream
        .write_all(&frame(3, 400, &[0; 400])[..20])
        .expect("it reads");
    assert_eq!(said(&mut stream, usize::MAX), b"");
    assert_eq!(source.counts().refused, 1);
    let update = ExternalUpdate::hits(100, 1.0, []).expect("none");
    idle.send(&update).expect("between messages it may wait");
}

#[test]
fn more_clients_than_allowed_are_told_so() {
    let options = SocketOptions {
        clients: 2,
        ..SocketOptions::default()
    };
    let (_folder, path, _source) = source(100, options);
    let update = ExternalUpdate::hits(100, 1.0, []).expect("none");
    let mut clients: Vec<SocketClient> = (0..2)
        .map(|_| {
            let mut client = SocketClient::connect(&path).expect("it listens");
            client.send(&update).expect("it is right");
            client
        })
        .collect();
    let mut third = SocketClient::connect(&path).expect("it listens");
    let error = third.send(&update).expect_err("too many");
    assert!(
        matches!(&error, SourceError::Refused { reason } if reason.contains("2 clients")),
        "{error}"
    );
    clients.pop();
    // Whoever went makes room.
    until("room", || {
        let mut third = SocketClient::connect(&path).expect("it listens");
        third.send(&update).is_ok()
    });
    clients[0].send(&update).expect("it is still there");
}

#[test]
fn a_socket_is_made_where_nothing_is_and_goes_with_its_source() {
    let (_folder, path, first) = source(10, SocketOptions::default());
    let again = SocketSource::bind(&path, 10, SocketOptions::default());
    assert!(matches!(again, Err(SourceError::Exists { path: at }) if at == path));
    let client = SocketClient::connect(&path).expect("the first one is still there");
    drop(first);
    assert!(!path.exists());
    let update = ExternalUpdate::hits(10, 1.0, []).expect("none");
    let mut client = client;
    let error = client.send(&update).expect_err("it is gone");
    assert!(matches!(error, SourceError::Io { .. }), "{error}");
    let error = client.send(&update).expect_err("it is gone");
    assert!(matches!(error, SourceError::Closed), "{error}");
    std::fs::write(&path, "something of somebody's").expect("a file");
    let over = SocketSource::bind(&path, 10, SocketOptions::default());
    assert!(matches!(over, Err(SourceError::Exists { .. })));
    assert!(path.exists());
    std::fs::remove_file(&path).expect("an own file");
    let missing = SocketSource::bind(path.join("no folder"), 10, SocketOptions::default());
    assert!(matches!(missing, Err(SourceError::Io { .. })));
    // One that was replaced is left to its new owner.
    let second = SocketSource::bind(&path, 10, SocketOptions::default()).expect("nothing is there");
    std::fs::remove_file(&path).expect("it is there");
    let other = UnixListener::bind(&path).expect("nothing is there");
    drop(second);
    assert!(path.exists());
    drop(other);
}

#[test]
fn a_source_leaves_neither_threads_nor_descriptors() {
    let sockets = || {
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux");
        let links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links
            .filter(|to| to.to_string_lossy().starts_with("socket:"))
            .count()
    };
    // Other tests of this program have sockets too: a process of its own counts.
    if std::env::var_os("GRADRING_TEST_ALONE").is_none() {
        let program = std::env::current_exe().expect("this program has a path");
        let status = std::process::Command::new(program)
            .args(["--exact", "a_source_leaves_neither_threads_nor_descriptors"])
            .env("GRADRING_TEST_ALONE", "1")
            .stdout(std::process::Stdio::null())
            .status()
            .expect("this program can be started again");
        assert!(status.success());
        return;
    }
    let threads = || std::fs::read_dir("/proc/self/task").expect("Linux").count();
    let before = (sockets(), threads());
    for _ in 0..20 {
        let (_folder, path, source) = source(10, SocketOptions::default());
        let mut client = SocketClient::connect(&path).expect("it listens");
        let update = ExternalUpdate::hits(10, 1.0, []).expect("none");
        client.send(&update).expect("it is right");
        let mut half = UnixStream::connect(&path).expect("it listens");
        half.write_all(b"grx").expect("it reads");
        drop(source);
        assert_eq!(said(&mut half, usize::MAX), b"");
    }
    assert_eq!((sockets(), threads()), before);
}
