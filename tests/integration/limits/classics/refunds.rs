//! A hundred mails an hour, several workers, sends that fail: counting up first and down again
//! afterwards.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use weir::limit::{Ending, Take};
use weir::plan::{Limit, Plan, Refund};

use super::{BEGIN_S, held};
use crate::harness::nodes::{Node, exact, fixed_window, of};
use crate::harness::redis::Connection;

const QUOTA: u64 = 100;
const MAILS: u32 = 130;
const WORKERS: usize = 10;
const HOUR_MS: u64 = 3_600_000;

/// Waiting and sent mails. The first attempt of every third one fails.
#[derive(Default)]
struct Mailbox {
    queue: VecDeque<u32>,
    failed_once: BTreeSet<u32>,
    sent: BTreeSet<u32>,
}

impl Mailbox {
    fn new() -> Self {
        Self { queue: (0..MAILS).collect(), ..Self::default() }
    }

    /// Whether it was sent; if not, it waits again.
    fn send(&mut self, mail: u32) -> bool {
        let goes = !mail.is_multiple_of(3) || !self.failed_once.insert(mail);
        if goes {
            assert!(self.sent.insert(mail), "mail {mail} was sent twice");
        } else {
            self.queue.push_back(mail);
        }
        goes
    }
}

/// INCR, and DECR if it was one too many or the send failed.
fn naive_worker(client: &mut Connection, mailbox: &mut Mailbox) -> bool {
    let Some(mail) = mailbox.queue.pop_front() else { return false };
    if client.ask(&["INCR", "mails"]).number() > QUOTA as i64 {
        client.ask(&["DECR", "mails"]);
        mailbox.queue.push_front(mail);
        return false;
    }
    client.ask(&["EXPIRE", "mails", "3600", "NX"]);
    if !mailbox.send(mail) {
        client.ask(&["DECR", "mails"]);
    }
    true
}

/// Runs the workers in turn, until all are refused or have nothing to do.
fn naive_workers(workers: &mut [Connection], mailbox: &mut Mailbox) {
    let mut busy = true;
    while busy {
        busy = false;
        for worker in &mut *workers {
            busy |= naive_worker(worker, mailbox);
        }
    }
}

#[test]
fn roll_back_by_decr_loses_what_a_killed_worker_had_and_carries_late_ones_into_the_next_hour() {
    let (time, redis) = held();
    let mut workers: Vec<Connection> = (0..WORKERS).map(|_| redis.connect()).collect();
    // A killed worker: its INCR has run, nobody reads the answer, and its mail returns to the
    // queue.
    redis.connect().ask(&["INCR", "mails"]);
    let mut mailbox = Mailbox::new();
    naive_workers(&mut workers, &mut mailbox);
    assert_eq!(mailbox.sent.len() as u64, QUOTA - 1, "one of the hour's hundred was never sent");
    assert_eq!(workers[0].ask(&["GET", "mails"]).number(), QUOTA as i64);

    // Ten sends are in flight when the hour ends, and fail in the next one: their DECR decrements a
    // counter that is no longer theirs.
    workers[0].ask(&["DEL", "mails"]);
    for worker in &mut workers {
        worker.ask(&["INCR", "mails"]);
        worker.ask(&["EXPIRE", "mails", "3600", "NX"]);
    }
    time.set(BEGIN_S + 3_601);
    for worker in &mut workers {
        worker.ask(&["DECR", "mails"]);
    }
    assert_eq!(workers[0].ask(&["GET", "mails"]).number(), -10);
    let mut mailbox = Mailbox::new();
    naive_workers(&mut workers, &mut mailbox);
    assert_eq!(mailbox.sent.len() as u64, QUOTA + 10, "ten more than the hour allows");
}

fn mails(algorithm: &weir::plan::Algorithm) -> Arc<Plan> {
    of(vec![Limit { refund: Refund::Unsent, ..Limit::new("mails", "mails", algorithm.clone()) }])
}

/// Runs one worker until it is refused or has nothing to do.
async fn worker(node: Node, plan: Arc<Plan>, mailbox: Arc<Mutex<Mailbox>>) {
    let next = || mailbox.lock().unwrap().queue.pop_front();
    while let Some(mail) = next() {
        match node.take(&plan).await {
            Take::Granted(_, grant) => {
                // A send takes time, in which others take.
                tokio::task::yield_now().await;
                let went = mailbox.lock().unwrap().send(mail);
                grant.settle(if went { Ending::Completed } else { Ending::Unsent }, &[]);
            }
            Take::Refused(_) => return mailbox.lock().unwrap().queue.push_front(mail),
            Take::Unavailable(_) => panic!("the store did not answer"),
        }
    }
}

/// Runs workers on `nodes` until a whole round of them sends nothing more.
async fn workers(nodes: &[Node], plan: &Arc<Plan>, mailbox: &Arc<Mutex<Mailbox>>) {
    loop {
        let before = mailbox.lock().unwrap().sent.len();
        let running = (0..WORKERS).map(|number| {
            worker(nodes[number % nodes.len()].clone(), Arc::clone(plan), Arc::clone(mailbox))
        });
        running.collect::<tokio::task::JoinSet<()>>().join_all().await;
        // Waits until everything that they gave back has arrived.
        for node in nodes {
            node.drain().await;
        }
        if mailbox.lock().unwrap().sent.len() == before {
            return;
        }
    }
}

/// A take that is sent, but whose worker is gone before the answer comes.
async fn killed_in_mid_take(node: &Node, plan: &Arc<Plan>) {
    let mut take = std::pin::pin!(node.take(plan));
    std::future::poll_fn(|context| {
        assert!(take.as_mut().poll(context).is_pending(), "it has its answer already");
        std::task::Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn of_a_hundred_mails_an_hour_exactly_a_hundred_are_sent_though_sends_fail_and_a_worker_is_killed()
 {
    // With the clock stopped. Otherwise a bucket would refill, and would keep as much of what is
    // given back as was refilled.
    let (_time, redis) = held();
    for algorithm in exact(QUOTA, HOUR_MS) {
        let nodes = Node::several(4, redis.address);
        let (plan, mailbox) = (mails(&algorithm), Arc::new(Mutex::new(Mailbox::new())));
        let mail = mailbox.lock().unwrap().queue.pop_front().unwrap();
        killed_in_mid_take(&nodes[0], &plan).await;
        mailbox.lock().unwrap().queue.push_back(mail);
        workers(&nodes, &plan, &mailbox).await;
        assert_eq!(mailbox.lock().unwrap().sent.len() as u64, QUOTA, "{algorithm:?}");
        assert_eq!(nodes[1].left(&plan).await, 0, "{algorithm:?}");
        let mailbox = mailbox.lock().unwrap();
        let all: BTreeSet<u32> = mailbox.sent.iter().chain(&mailbox.queue).copied().collect();
        assert_eq!(
            (all.len(), mailbox.queue.len()),
            (MAILS as usize, MAILS as usize - 100),
            "each mail was sent or waits"
        );
    }
}

#[tokio::test]
async fn a_failure_after_its_hour_adds_nothing_to_the_next_one() {
    let (time, redis) = held();
    let nodes = Node::several(4, redis.address);
    let plan = mails(&fixed_window(QUOTA, HOUR_MS));
    let mut under_way = Vec::new();
    for node in nodes.iter().cycle().take(10) {
        let Take::Granted(_, grant) = node.take(&plan).await else { panic!("refused") };
        under_way.push(grant);
    }
    time.set(BEGIN_S + 3_601);
    // Five fail before anything of the new hour is counted, five in the middle of it.
    let late = under_way.split_off(5);
    under_way.into_iter().for_each(|grant| grant.settle(Ending::Unsent, &[]));
    assert_eq!(nodes[0].admitted(&plan, 50).await, 50);
    late.into_iter().for_each(|grant| grant.settle(Ending::Unsent, &[]));
    for node in &nodes {
        node.drain().await;
    }
    assert_eq!(nodes[0].admitted(&plan, 60).await, 50, "a hundred in the second hour");
}

/// Nobody can know whether a worker that died with a grant has sent its mail. So its unit stays
/// taken until the hour ends, and the limit is never exceeded.
#[tokio::test]
async fn a_worker_that_dies_with_its_grant_costs_one_mail_of_this_hour_and_none_of_the_next() {
    let (time, redis) = held();
    let address = redis.address;
    let plan = mails(&fixed_window(QUOTA, HOUR_MS));
    let killed = Arc::clone(&plan);
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let grant = runtime.block_on(async { Node::single(address).take(&killed).await });
        assert!(matches!(grant, Take::Granted(..)));
        // Its runtime ends first, as in a crash, so nothing that the grant might still do has an
        // effect.
        drop(runtime);
    });
    process.join().unwrap();
    let nodes = Node::several(4, redis.address);
    let mailbox = Arc::new(Mutex::new(Mailbox::new()));
    workers(&nodes, &plan, &mailbox).await;
    assert_eq!(mailbox.lock().unwrap().sent.len() as u64, QUOTA - 1);
    time.set(BEGIN_S + 3_600);
    let mailbox = Arc::new(Mutex::new(Mailbox::new()));
    workers(&nodes, &plan, &mailbox).await;
    assert_eq!(mailbox.lock().unwrap().sent.len() as u64, QUOTA);
    assert_eq!(redis.keys_without_lifetime(), [] as [&str; 0]);
}
