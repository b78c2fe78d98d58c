/** Which modules a command loads. Each costs time and memory. */
import { execa } from 'execa';

const ROOT = new URL('../..', import.meta.url).href;

/**
 * Runs a command in a process of its own.
 * @returns names of Node.js's own modules, of packages, and paths of the project's sources.
 */
export async function loadedModules(...args: readonly string[]): Promise<readonly string[]> {
  const script = `
    import { registerHooks } from 'node:module';
    const names = new Set();
    registerHooks({
      load(url, context, next) {
        const name = /node_modules\\/((?:@[^/]+\\/)?[^/]+)/.exec(url)?.[1];
        names.add(name ?? url.replace('${ROOT}', ''));
        return next(url, context);
      },
    });
    process.on('exit', () => {
      console.error('\\n' + JSON.stringify([...names, ...process.moduleLoadList]));
    });
    process.argv.splice(1, 0, 'portwide');
    await import('${ROOT}cmd/main.ts');
  `;
  const options = ['--input-type=module', '--eval', script, '--', ...args];
  const { stderr } = await execa(process.execPath, options, { reject: false });
  return JSON.parse(stderr.slice(stderr.lastIndexOf('\n'))) as string[];
}
