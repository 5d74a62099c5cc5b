//! What goes wrong with processes, their clocks and the ways between them, at times that follow from
//! the seed.

use std::rc::Rc;
use std::time::Duration;

use super::run::Run;
use crate::node::Node;
use crate::random::Random;

/// Has things go wrong with these processes until the faults end.
pub(super) fn trouble(run: &Rc<Run>, nodes: &[Node]) {
    let mut random = run.random("troubles");
    let ahead = run.knob("clock-ahead-ms");
    let drift = run.knob("clock-drift");
    for node in nodes {
        node.step_clock(either_way(&mut random, ahead));
        node.drift(either_way(&mut random, drift));
    }
    for _ in 0..run.knob("kills") {
        let (at, node) = draw(run, &mut random, nodes);
        let down = Duration::from_millis(random.below(run.knob("down-ms") + 1));
        plan(run, at, move |run| async move {
            run.cover("process killed");
            run.note(
                node.name(),
                format_args!("is killed for {} ms", down.as_millis()),
            );
            node.kill();
            run.world.sleep(down).await;
            run.note(node.name(), format_args!("starts"));
            node.start();
        });
    }
    for _ in 0..run.knob("clock-steps") {
        let (at, node) = draw(run, &mut random, nodes);
        let mut step = either_way(&mut random, run.knob("clock-step-ms"));
        // A shard numbers its requests by its clock. Set back and restarted, while one from before is
        // still on its way, it may miss a lease that is given to that one. The embedded host's clock
        // never goes back (docs/decisions/0007), so where there are leases none does here. Neither where
        // storage is put back: only by the clock a new incarnation is later than one that is lost.
        if run.knob("lease-mode") > 0 || run.knob("restores") > 0 {
            step = step.abs();
        }
        plan(run, at, move |run| async move {
            run.cover("clock stepped");
            run.note(node.name(), format_args!("its clock steps by {step} ms"));
            node.step_clock(step);
        });
    }
    for _ in 0..run.knob("partitions") {
        let (at, node) = draw(run, &mut random, nodes);
        let other = nodes[random.below(nodes.len() as u64) as usize].clone();
        let lasts = Duration::from_millis(random.below(run.knob("partition-ms") + 1));
        if node.name() == other.name() {
            continue;
        }
        plan(run, at, move |run| async move {
            run.cover("processes parted");
            let ms = lasts.as_millis();
            run.note(
                node.name(),
                format_args!("and {} are parted for {ms} ms", other.name()),
            );
            run.network.part(&node, &other);
            run.world.sleep(lasts).await;
            run.network.join(&node, &other);
        });
    }
}

/// Ends what has not ended by itself.
pub(super) fn mend(nodes: &[Node]) {
    for node in nodes {
        node.drift(0);
        if !node.is_up() {
            node.start();
        }
    }
}

fn draw(run: &Run, random: &mut Random, nodes: &[Node]) -> (Duration, Node) {
    let at = random.below(run.knob("duration-s") * 1_000);
    let node = &nodes[random.below(nodes.len() as u64) as usize];
    (Duration::from_millis(at), node.clone())
}

fn plan<F: Future<Output = ()> + 'static>(
    run: &Rc<Run>,
    at: Duration,
    happens: impl FnOnce(Rc<Run>) -> F + 'static,
) {
    let run = run.clone();
    run.world.clone().spawn(async move {
        run.world.sleep(at).await;
        if !run.is_healed() {
            happens(run).await;
        }
    });
}

fn either_way(random: &mut Random, most: u64) -> i64 {
    let most = i64::try_from(most).unwrap_or(0);
    let drawn = i64::try_from(random.below(2 * most as u64 + 1)).unwrap_or(0);
    drawn - most
}
