/** Words that `make lint` rejects, with advice. */

export interface AvoidedWord {
  readonly pattern: RegExp;
  readonly advice: string;
}

const NAME_IT = 'name the thing or the person';
const OF_THE_FIELD = "use the field's term (docs/develop/glossary.md)";

/** Matched within a sentence, in any case. */
export const AVOIDED: readonly AvoidedWord[] = [
  avoided('whoever|whomever|whatsoever|whichever of', NAME_IT),
  avoided('somebody|someone|anybody|anyone|nobody|no one|everybody', NAME_IT),
  avoided('whom|thereof|whereof|whereby|therein|wherein|thereby|hereby', 'make two sentences'),
  avoided(
    'of these|of those|of which|in which case that|that of which|those that|those which|those of',
    NAME_IT,
  ),
  avoided('what (?:it|they) (?:was|were|had)|what was|what were|which it was', NAME_IT),
  avoided('hear(?:s|d)? of|heard from|tell(?:s)? of|told of', 'say: watch, report, notify'),
  avoided('anew|lest|hence|ere|albeit|nigh|for want of', 'use the plain word'),
  avoided('no more(?= *[.,;:)]|$)|any more(?= *[.,;:)]|$)', 'say: no longer, any longer'),
  avoided('under way', 'say: in flight, in progress'),
  avoided('comes? by|came by', 'say: arrives, passes'),
  avoided('in vain|ever so|of late|by and by', 'use the plain word'),
  avoided('stranger|strangers', 'say: unknown object, other client'),
  avoided('loyalt(?:y|ies)|fates?|seniority|rivals?|suspects?|innocents?', OF_THE_FIELD),
  avoided('skeletons?|standing (?:chains?|rules?)|retirements?|hopeless|deaf', OF_THE_FIELD),
  avoided('ledgers?|census|lingering|by lot|drawn?(?= by)', OF_THE_FIELD),
];

function avoided(words: string, advice: string): AvoidedWord {
  return { pattern: new RegExp(`(?<![\\w-])(?:${words})(?![\\w-])`, 'gi'), advice };
}

/**
 * Invented terms in names of code and of kernel objects, in any case: `VipLedger`, `port-fates`.
 */
export const INVENTED_NAMES =
  /\b\w*?(?:loyalt(?:y|ies)|fate|skeleton|ledger|census|seniority|(?<!r)rival|suspect|innocent|stranger|retirement|hopeless|lingering|disturb)\w*/gi;
