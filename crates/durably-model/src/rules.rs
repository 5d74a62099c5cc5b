//! What must hold in every step and every state, one sentence each.

/// A rule that a step may break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// No grant or lease has the id of another.
    IdsAreNew,
    /// A plan changes only rows that are there, and of them only what its kind may change.
    PlansFitTheRows,
    /// What is claimed and released only rises, what was given only shrinks.
    MarksOnlyRise,
    /// The sums in memory are those of the rows.
    SumsAreARecount,
    /// A row has something outstanding, and nothing is released that was not claimed.
    RowsAreSane,
    /// Only a round that gives makes the sums larger: no permit comes out of nothing.
    OnlyGivingGrows,
    /// What a round gives is within the limit that it has read, or the extra.
    GivesWithinTheLimit,
    /// What a round gives to a group is within the group's ceiling.
    GivesWithinTheCeiling,
    /// Work that was admitted does not lose its permit.
    WorkKeepsItsPermit,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 9] = [
        Rule::IdsAreNew,
        Rule::PlansFitTheRows,
        Rule::MarksOnlyRise,
        Rule::SumsAreARecount,
        Rule::RowsAreSane,
        Rule::OnlyGivingGrows,
        Rule::GivesWithinTheLimit,
        Rule::GivesWithinTheCeiling,
        Rule::WorkKeepsItsPermit,
    ];

    /// The rule as a sentence.
    pub const fn sentence(self) -> &'static str {
        match self {
            Rule::IdsAreNew => "no grant or lease has the id of another",
            Rule::PlansFitTheRows => "a plan changes what is there, as its kind may",
            Rule::MarksOnlyRise => "marks only rise",
            Rule::SumsAreARecount => "the sums are a recount of the rows",
            Rule::RowsAreSane => "released <= claimed <= permits, and something is outstanding",
            Rule::OnlyGivingGrows => "only a round that gives makes the sums larger",
            Rule::GivesWithinTheLimit => "a round gives within the limit that it has read",
            Rule::GivesWithinTheCeiling => "a round gives within a group's ceiling",
            Rule::WorkKeepsItsPermit => "work that was admitted does not lose its permit",
        }
    }
}
