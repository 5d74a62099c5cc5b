//! What a seed decides about a run before it begins: sizes, times and how often what fails.
//!
//! Every knob draws from a stream of its own, so that setting one moves no other. That is what makes
//! shrinking possible.

use std::collections::BTreeMap;

use crate::random::Random;

/// Something that a seed decides.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Its name, as `--set NAME=VALUE` takes it.
    pub name: &'static str,
    /// What it does, with its unit.
    pub about: &'static str,
    draw: Draw,
}

#[derive(Clone, Copy, Debug)]
enum Draw {
    /// Anything from the first to the last.
    Range(u64, u64),
    /// The same, with small ones as likely as large ones.
    Scale(u64, u64),
    /// One of these.
    Choice(&'static [u64]),
    /// A fault: none in calm runs and often none in others, up to this in the worst.
    Fault(u64),
}

/// How much goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Calm,
    Changing,
    Storm,
}

impl Knob {
    /// Anything from `least` to `most`.
    pub const fn range(name: &'static str, least: u64, most: u64, about: &'static str) -> Knob {
        Knob {
            name,
            about,
            draw: Draw::Range(least, most),
        }
    }

    /// From `least`, which is not 0, to `most`, where every order of magnitude is as likely.
    pub const fn scale(name: &'static str, least: u64, most: u64, about: &'static str) -> Knob {
        Knob {
            name,
            about,
            draw: Draw::Scale(least, most),
        }
    }

    /// One of `values`, the simplest first.
    pub const fn choice(name: &'static str, values: &'static [u64], about: &'static str) -> Knob {
        Knob {
            name,
            about,
            draw: Draw::Choice(values),
        }
    }

    /// A fault, up to `most`; 0 is none.
    pub const fn fault(name: &'static str, most: u64, about: &'static str) -> Knob {
        Knob {
            name,
            about,
            draw: Draw::Fault(most),
        }
    }

    /// Its simplest value.
    pub fn simplest(&self) -> u64 {
        match self.draw {
            Draw::Range(least, _) | Draw::Scale(least, _) => least,
            Draw::Choice(values) => values.first().copied().unwrap_or(0),
            Draw::Fault(_) => 0,
        }
    }

    /// Whether it is something that goes wrong.
    pub fn is_fault(&self) -> bool {
        matches!(self.draw, Draw::Fault(_))
    }

    /// Whether it may have this value.
    pub fn allows(&self, value: u64) -> bool {
        match self.draw {
            Draw::Range(least, most) | Draw::Scale(least, most) => (least..=most).contains(&value),
            Draw::Choice(values) => values.contains(&value),
            Draw::Fault(most) => value <= most,
        }
    }

    /// The values it may have, for people.
    pub fn values(&self) -> String {
        match self.draw {
            Draw::Range(least, most) | Draw::Scale(least, most) => format!("{least}..={most}"),
            Draw::Choice(values) => {
                let values: Vec<String> = values.iter().map(u64::to_string).collect();
                values.join("|")
            }
            Draw::Fault(most) => format!("0..={most}"),
        }
    }

    /// Values between the simplest and `value`, the simplest first.
    pub(super) fn simpler(&self, value: u64) -> Vec<u64> {
        if let Draw::Choice(values) = self.draw {
            let simpler = values.iter().take_while(|choice| **choice != value);
            return simpler.copied().collect();
        }
        let simplest = self.simplest();
        let distance = value.saturating_sub(simplest);
        let mut steps = vec![simplest, simplest + distance / 4, simplest + distance / 2];
        steps.push(value.saturating_sub(1));
        steps.retain(|step| *step < value && *step >= simplest);
        steps.dedup();
        steps
    }

    fn draw(&self, seed: u64, weather: Weather) -> u64 {
        let mut random = Random::of(seed, self.name);
        match self.draw {
            Draw::Range(least, most) => least + random.below(most - least + 1),
            Draw::Scale(least, most) => {
                let (low, high) = ((least as f64).ln(), (most as f64).ln());
                let part = random.below(1_000_001) as f64 / 1_000_000.0;
                let drawn = (low + (high - low) * part).exp().round() as u64;
                drawn.clamp(least, most)
            }
            Draw::Choice(values) => {
                let place = random.below(values.len() as u64) as usize;
                values.get(place).copied().unwrap_or(0)
            }
            Draw::Fault(most) => match weather {
                Weather::Calm => 0,
                Weather::Changing if random.below(2) == 0 => 0,
                // Rather a little of it.
                Weather::Changing => 1 + random.below(most).min(random.below(most)),
                Weather::Storm => most - random.below(most / 2 + 1),
            },
        }
    }
}

/// The values of all knobs of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knobs(BTreeMap<&'static str, u64>);

impl Knobs {
    /// What `seed` decides, except for what is set.
    pub fn draw(knobs: &[&[Knob]], seed: u64, set: &BTreeMap<String, u64>) -> Knobs {
        let weather = match Random::of(seed, "weather").below(8) {
            0 => Weather::Calm,
            1 => Weather::Storm,
            _ => Weather::Changing,
        };
        let all = knobs.iter().flat_map(|knobs| knobs.iter());
        Knobs(
            all.map(|knob| {
                let set = set.get(knob.name).copied();
                (knob.name, set.unwrap_or_else(|| knob.draw(seed, weather)))
            })
            .collect(),
        )
    }

    /// The value of a knob; 0 if the scenario has no such knob.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(name, value)| (*name, *value))
    }
}
