/**
 * An agent that writes changing policies until it is killed: `churner.ts CHURN HOW`. After the
 * first full write, HOW `all` replaces the whole table in a loop, and any other value applies
 * changes.
 */
import { PolicyBackend } from '../../policy/enforce/backend.ts';
import { openPolicyTables } from '../../policy/enforce/rebuild.ts';
import { type Churn, changeTo, stateOf } from './kernel-churn.ts';

const [json = '', how] = process.argv.slice(2);
const churn = JSON.parse(json) as Churn;
const { family } = churn;
const backend = new PolicyBackend(openPolicyTables(family), {
  family,
  onWarning: (message) => console.error(message),
});
console.log('starts');
const NOTHING = { elements: [], entries: [] };
await backend.replaceAll(stateOf(0, churn), NOTHING);
console.log('churns');
for (let step = 1; ; step++) {
  if (how === 'all') await backend.replaceAll(stateOf(step, churn), NOTHING);
  else await backend.apply(changeTo(step, churn));
}
