/**
 * Answers of the status API to faults in mode ipvs, with the fields in which the page finds the cause. In
 * user-mode-linux, while packets show the fault, the agent must give them (ipvs-faults.uml.ts). It has no Chromium, so
 * outside of it the page must name the cause when it gets them (faults-node.test.ts).
 */
import { readFileSync } from 'node:fs';
import type { IPVS_CAUSES } from './fault-causes.ts';

export type IpvsFault = keyof typeof IPVS_CAUSES;
type Fields = Readonly<Record<string, unknown>>;

export const IPVS_ANSWERS: Readonly<
  Record<IpvsFault, { readonly path: string; readonly answer: Fields }>
> = JSON.parse(readFileSync(new URL('./ipvs-answers.json', import.meta.url), 'utf8'));

/** The fields of an answer that are recorded, without counts and ages. */
export function comparable(answer: Fields, recorded: Fields): Fields {
  const found = Object.fromEntries(Object.keys(recorded).map((name) => [name, answer[name]]));
  const text = JSON.stringify(found)
    .replaceAll(/"as these rules were \d+ seconds? ago"/g, '')
    .replaceAll(/\b\d+ of \d+\b/g, 'N of M');
  return JSON.parse(text) as Fields;
}
