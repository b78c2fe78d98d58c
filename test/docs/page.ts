/** Pages of docs/, as far as tests look into them. */

/** The texts of the fenced blocks of one language, in their order. */
export function fencedBlocks(page: string, language: string): string[] {
  const blocks = page.matchAll(/^```(\w*)\n(.*?)^```$/gms);
  return [...blocks].filter(([, name]) => name === language).map(([, , text = '']) => text);
}

/** A command and what is shown below it, without the last newline. */
export interface ShownCommand {
  readonly command: string;
  readonly output: string;
}

/** A block of language `console`: commands after `$ `, each with its output. */
export function consoleCommands(block: string): ShownCommand[] {
  return block
    .split(/^\$ /m)
    .slice(1)
    .map((text) => {
      const [command = '', ...output] = text.trimEnd().split('\n');
      return { command, output: output.join('\n') };
    });
}
