import assert from 'node:assert/strict';
import { type Cause, NODE_CAUSES, SERVICE_CAUSES } from '../e2e/fault-causes.ts';
import { readPage } from './page.ts';

const CAUSES: readonly Cause[] = [...Object.values(SERVICE_CAUSES), ...Object.values(NODE_CAUSES)];
const HEAD = '| fault | command | page |\n|---|---|---|\n';

describe('table of faults of inspect.md', () => {
  const [, after = ''] = readPage('docs/operate/inspect.md').split(HEAD);
  const [table = ''] = after.split('\n\n');
  const rows = table.split('\n').map((row) => {
    const [faults = '', command = '', place = ''] = row.split(' | ');
    return {
      faults: faults.replace('| ', '').split(', '),
      command: command.replaceAll('`', '').split(' ').slice(1),
      place: place.replace(' |', ''),
    };
  });

  it('names the commands and places of the page that tests with packets try', () => {
    const tried = CAUSES.map(({ fault, command, page }) => textOf(fault, command, page.place));
    const named = rows.flatMap(({ faults, command, place }) =>
      faults.map((fault) => textOf(fault, command, place)),
    );
    assert.deepEqual(named.sort(), [...new Set(tried)].sort());
  });
});

/** Without examples of names and addresses. */
function textOf(fault: string, command: readonly string[], place: string): string {
  const words = command.filter((word) => /^[a-z]+$/.test(word) || word === '--live');
  return `${fault}: ${words.join(' ')}, ${place}`;
}
