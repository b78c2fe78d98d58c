/** Lints the prose of one file. */
import { TextlintKernel } from '@textlint/kernel';
import markdown from '@textlint/textlint-plugin-markdown';
import { RULES } from './rules.ts';
import { typescriptPlugin } from './typescript.ts';

export interface Problem {
  readonly line: number;
  readonly column: number;
  readonly rule: string;
  readonly message: string;
}

const kernel = new TextlintKernel();
const rules = Object.entries(RULES).map(([ruleId, rule]) => ({ ruleId, rule }));
const plugins = [
  { pluginId: 'markdown', plugin: markdown.default },
  { pluginId: 'typescript', plugin: typescriptPlugin },
];

/** @param path ends with `.md` or `.ts`. Files below `test/` are tests. */
export async function lintProse(text: string, path: string): Promise<Problem[]> {
  const ext = path.slice(path.lastIndexOf('.'));
  const { messages } = await kernel.lintText(text, { ext, filePath: path, rules, plugins });
  return messages.map(({ line, column, ruleId, message }) => ({
    line,
    column,
    rule: ruleId,
    message,
  }));
}
