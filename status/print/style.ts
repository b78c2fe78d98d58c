/** Colours of state words, and safe text for a terminal. Pure. */
import { printableAscii } from '../../api/read-field.ts';

/** Colours one state word; other words stay as they are. */
export type Style = (word: string) => string;

const GREEN = 32;
const YELLOW = 33;
const RED = 31;

const COLOURS: ReadonlyMap<string, number> = new Map([
  ...['healthy', 'served', 'ready', 'yes', 'ok'].map((word) => [word, GREEN] as const),
  ...[
    'starting',
    'noEndpoints',
    'partial',
    'terminating',
    'notReady',
    'no',
    'unexpected',
    'Warning',
  ].map((word) => [word, YELLOW] as const),
  ...['degraded', 'refused', 'missing', 'changed', 'unreachable', 'deleted', 'faulty'].map(
    (word) => [word, RED] as const,
  ),
  ...['rejected', 'dropped', 'denied'].map((word) => [word, RED] as const),
]);

/** No colours. */
export const PLAIN: Style = (word) => word;

/** Colours for a terminal. */
export const COLOURED: Style = (word) => {
  const colour = COLOURS.get(word);
  return colour === undefined ? word : `\u001b[${colour}m${word}\u001b[39m`;
};

/**
 * Colours only if the output is a terminal that has them.
 * @param env `NO_COLOR` with any value (https://no-color.org) and `TERM=dumb` turn colours off.
 */
export function styleFor(
  isTerminal: boolean,
  { NO_COLOR, TERM }: Readonly<Record<string, string | undefined>>,
): Style {
  return isTerminal && (NO_COLOR ?? '') === '' && TERM !== 'dumb' ? COLOURED : PLAIN;
}

/**
 * Text for one line. Names and messages come from objects that any user of the cluster may write, so control
 * characters must not reach the terminal.
 */
export const safe: (text: string) => string = printableAscii;
