import assert from 'node:assert/strict';
import { existsSync, globSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT, readText, readYaml } from './read.ts';

interface Form {
  readonly body: readonly {
    readonly id?: string;
    readonly attributes: { readonly label?: string; readonly description?: string };
    readonly validations?: { readonly required: boolean };
  }[];
}

interface Dependabot {
  readonly updates: readonly {
    readonly 'package-ecosystem': string;
    readonly schedule: { readonly interval: string };
    readonly groups: Readonly<Record<string, unknown>>;
    readonly ignore?: readonly { readonly 'dependency-name': string }[];
  }[];
}

describe('issue templates', () => {
  it('ask in a bug report for the mode, versions, status and differences', () => {
    const { body } = readYaml<Form>('.github/ISSUE_TEMPLATE/bug.yml');
    const required = body.filter(({ validations }) => validations?.required).map(({ id }) => id);
    const wanted = ['what', 'steps', 'mode', 'version', 'kernel', 'iptables', 'status', 'diff'];
    assert.deepEqual(required, wanted);
    const labels = body.map(({ attributes }) => attributes.label);
    for (const command of ['portwide status -o json', 'portwide diff']) {
      assert.ok(labels.includes(command), command);
    }
  });

  it('have identifiers that are unique', () => {
    for (const path of globSync('.github/ISSUE_TEMPLATE/{bug,feature}.yml', { cwd: ROOT })) {
      const ids = readYaml<Form>(path).body.flatMap(({ id }) => id ?? []);
      assert.equal(new Set(ids).size, ids.length, path);
    }
  });

  it('lead questions to pages that exist', () => {
    const text = readText('.github/ISSUE_TEMPLATE/config.yml');
    const paths = [...text.matchAll(/\/blob\/main\/([\w./-]+)/g)].map(([, path = '']) => path);
    assert.equal(paths.length, 2);
    for (const path of paths) assert.ok(existsSync(join(ROOT, path)), path);
  });
});

describe('dependabot.yml', () => {
  const { updates } = readYaml<Dependabot>('.github/dependabot.yml');

  it('updates npm packages and actions weekly, in groups', () => {
    assert.deepEqual(
      updates.map((each) => [
        each['package-ecosystem'],
        each.schedule.interval,
        Object.keys(each.groups).length,
      ]),
      [
        ['npm', 'weekly', 1],
        ['github-actions', 'weekly', 1],
      ],
    );
  });

  it('ignores only packages of package.json, each with a reason', () => {
    const { dependencies, devDependencies } = JSON.parse(readText('package.json'));
    const text = readText('.github/dependabot.yml');
    for (const { 'dependency-name': name } of updates.flatMap(({ ignore = [] }) => ignore)) {
      assert.ok(name in { ...dependencies, ...devDependencies }, name);
    }
    // A comment may hold for several packages that follow it.
    const [, list = ''] = text.split('ignore:\n');
    assert.match(list, /^ +# /);
  });
});

describe('CODEOWNERS', () => {
  it('names teams, not people', () => {
    const lines = readText('.github/CODEOWNERS').split('\n');
    const owners = lines.filter((line) => line !== '' && !line.startsWith('#'));
    assert.ok(owners.length > 0);
    for (const line of owners) assert.match(line, /^\S+ @portwide\/maintainers$/);
  });
});

describe('.editorconfig', () => {
  it('has the indentation and width of biome.json', () => {
    const { formatter } = JSON.parse(readText('biome.json'));
    const [, section = ''] = /^\[\*\]\n((?:.+\n)+)/m.exec(readText('.editorconfig')) ?? [];
    const settings = Object.fromEntries(section.split('\n').map((line) => line.split(' = ')));
    assert.deepEqual(
      [settings.indent_style, settings.indent_size, settings.max_line_length],
      [formatter.indentStyle, String(formatter.indentWidth), String(formatter.lineWidth)],
    );
  });
});
